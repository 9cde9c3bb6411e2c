#include "penstock/train/trainer.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/utils/clip_grad.h>

#include <functional>
#include <limits>
#include <map>
#include <mutex>

#include "penstock/core/error.h"
#include "penstock/runtime/nn/mlp.h"
#include "tests/support/same_bits.h"

namespace penstock::train {
namespace {

using Parameters = std::map<std::string, at::Tensor>;

using testing_support::same_bits;

at::Tensor mean_squared_error(const at::Tensor& output, const at::Tensor& target) {
  return at::mse_loss(output, target);
}

void copy_parameters(const Trainer& trainer, Parameters& into) {
  for (const auto& [name, tensor] : trainer.parameters()) into[name] = tensor.detach().clone();
}

constexpr std::int64_t kWidth = 6;

struct Random {
  at::Tensor input = at::rand({8, kWidth});
  at::Tensor target = at::rand({8, kWidth});
};

TrainerOptions small(const mesh::Shape& mesh) {
  return {.mesh = mesh, .microbatches = 4, .optimizer = {.lr = 0.01}};
}

TEST(Trainer, ClippingIsTorchs) {
  TrainerOptions options = small({.pipe = 2});
  options.optimizer = {.type = config::OptimizerType::Sgd, .lr = 1.0};
  options.gradient_clipping = 0.01;
  const Random batch;
  Parameters before, gradients, after;
  std::mutex mutex;
  StepReport report;
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    Trainer trainer(options, nn::mlp_layers(kWidth, 4), mean_squared_error, communicator);
    const StepReport of_gradients = trainer.compute_gradients(batch.input, batch.target);
    {
      const std::lock_guard lock(mutex);
      copy_parameters(trainer, before);
      for (const auto& [name, tensor] : trainer.parameters()) {
        gradients[name] = tensor.grad().clone();
      }
    }
    trainer.zero_grad();
    const StepReport of_step = trainer.step(batch.input, batch.target);
    EXPECT_EQ(of_step.grad_norm, of_gradients.grad_norm);
    EXPECT_EQ(of_step.loss, of_gradients.loss);
    const std::lock_guard lock(mutex);
    copy_parameters(trainer, after);
    report = of_step;
  });
  std::vector<at::Tensor> leaves;
  std::vector<std::string> names;
  for (const auto& [name, gradient] : gradients) {
    leaves.push_back(before[name].clone().requires_grad_(true));
    leaves.back().mutable_grad() = gradient.clone();
    names.push_back(name);
  }
  const double norm = torch::nn::utils::clip_grad_norm_(leaves, options.gradient_clipping);
  ASSERT_GT(norm, options.gradient_clipping);
  EXPECT_NEAR(report.grad_norm / norm, 1.0, 1e-6);
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const at::Tensor expected = before[names[i]] - leaves[i].grad();
    EXPECT_LE((after[names[i]] - expected).abs().max().item<double>(), 1e-6) << names[i];
    EXPECT_FALSE(at::equal(after[names[i]], before[names[i]])) << names[i];
  }
}

TEST(Trainer, EvaluateIsTheMeanLossAndChangesNothing) {
  const Random batch, other;
  const auto model = nn::mlp_layers(kWidth, 4);
  for (const mesh::Shape mesh : {mesh::Shape{1, 1}, {2, 1}, {2, 2}}) {
    comm::run_ranks(mesh.pipe * mesh.data, [&](comm::Communicator& communicator) {
      Trainer trainer(small(mesh), model, mean_squared_error, communicator);
      const bool second = trainer.layout().mesh.coordinate(communicator.rank()).data == 1;
      const Random& mine = second ? other : batch;
      Parameters before, after;
      copy_parameters(trainer, before);
      const double loss = trainer.evaluate(mine.input, mine.target);
      EXPECT_EQ(trainer.evaluate(mine.input, mine.target), loss);
      EXPECT_EQ(trainer.rank_model().activations().peak, 0);
      copy_parameters(trainer, after);
      for (const auto& [name, tensor] : before) EXPECT_TRUE(same_bits(after[name], tensor));
      EXPECT_NEAR(trainer.compute_gradients(mine.input, mine.target).loss, loss, 1e-12);
    });
  }
}

TEST(Trainer, InferGivesTheModelsOutputOnTheLastStage) {
  const auto model = nn::mlp_layers(kWidth, 4);
  const at::Tensor input = at::rand({3, kWidth});
  comm::run_ranks(4, [&](comm::Communicator& communicator) {
    Trainer trainer(small({.pipe = 4}), model, mean_squared_error, communicator);
    for (int repeat = 0; repeat < 2; ++repeat) {
      const at::Tensor output = trainer.infer(input);
      EXPECT_EQ(output.defined(), trainer.rank_model().is_last_stage());
      if (!output.defined()) continue;
      at::Tensor value = input;
      for (std::int64_t i = 0; i < 4; ++i) {
        value = nn::build(model[static_cast<std::size_t>(i)], 1234, i)->forward(value);
      }
      EXPECT_TRUE(same_bits(output, value.detach()));
    }
  });
}

TEST(Trainer, ALossThatIsNotFiniteIsAnErrorOnEveryRankAndTheWeightsStay) {
  const Random good;
  Random bad;
  bad.target[5][0] = std::numeric_limits<float>::quiet_NaN();
  std::mutex mutex;
  std::vector<std::string> messages;
  comm::run_ranks(4, [&](comm::Communicator& communicator) {
    Trainer trainer(small({.pipe = 2, .data = 2}), nn::mlp_layers(kWidth, 4), mean_squared_error,
                    communicator);
    trainer.step(good.input, good.target);
    Parameters before, after;
    copy_parameters(trainer, before);
    // Only the second replica meets the bad sample.
    const bool meets = trainer.layout().mesh.coordinate(communicator.rank()).data == 1;
    const Random& batch = meets ? bad : good;
    try {
      trainer.step(batch.input, batch.target);
      ADD_FAILURE() << "rank " << communicator.rank() << " went on";
    } catch (const NumericsError& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::Numerics);
      const std::lock_guard lock(mutex);
      messages.push_back(error.message());
    }
    copy_parameters(trainer, after);
    for (const auto& [name, tensor] : before) EXPECT_TRUE(same_bits(after[name], tensor)) << name;
    EXPECT_EQ(trainer.step(good.input, good.target).step, 2) << "the run can go on";
  });
  ASSERT_EQ(messages.size(), 4u);
  for (const std::string& message : messages) {
    EXPECT_EQ(message, "step 2: the loss of 1 of 8 microbatches is not finite; the step's is nan");
  }
}

TEST(Trainer, AGradientThatIsNotFiniteIsAnErrorOnEveryRankAndTheWeightsStay) {
  // Zero, with the derivative of a square root at zero.
  const auto loss = [](const at::Tensor& output, const at::Tensor&) {
    return (output - output.detach()).pow(2).sum().sqrt();
  };
  const Random batch;
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    Trainer trainer(small({.pipe = 2}), nn::mlp_layers(kWidth, 4), loss, communicator);
    Parameters before, after;
    copy_parameters(trainer, before);
    try {
      trainer.step(batch.input, batch.target);
      ADD_FAILURE() << "rank " << communicator.rank() << " went on";
    } catch (const NumericsError& error) {
      EXPECT_EQ(error.message(), "step 1: the gradient norm is nan at loss 0");
    }
    copy_parameters(trainer, after);
    for (const auto& [name, tensor] : before) EXPECT_TRUE(same_bits(after[name], tensor)) << name;
  });
}

TEST(Trainer, RanksThatDoNotAgreeAllRefuseAndNameTheFirstDifference) {
  struct Case {
    const char* what;
    void (*change)(TrainerOptions&);
  };
  const Case cases[] = {
      {"seed=1234", [](TrainerOptions& options) { options.seed = 99; }},
      {"microbatches=4", [](TrainerOptions& options) { options.microbatches = 2; }},
      {"gpipe", [](TrainerOptions& options) { options.schedule = "gpipe"; }},
      {"partition=0 2 4",
       [](TrainerOptions& options) { options.partition = partition::ByBounds{{0, 1, 4}}; }},
      {"gradient_clipping=0", [](TrainerOptions& options) { options.gradient_clipping = 1; }},
      {"optimizer", [](TrainerOptions& options) { options.optimizer.lr = 0.5; }},
      {"scheduler",
       [](TrainerOptions& options) {
         options.scheduler.type = config::SchedulerType::WarmupCosine;
       }},
      {"steps", [](TrainerOptions& options) { options.total_steps = 3; }},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    std::mutex mutex;
    std::vector<std::string> messages;
    comm::run_ranks(2, [&](comm::Communicator& communicator) {
      TrainerOptions options = small({.pipe = 2});
      if (communicator.rank().value == 1) one.change(options);
      try {
        Trainer(options, nn::mlp_layers(kWidth, 4), mean_squared_error, communicator);
      } catch (const CommError& error) {
        EXPECT_EQ(error.exit_code(), ExitCode::Usage);
        const std::lock_guard lock(mutex);
        messages.push_back(error.message());
      }
    });
    ASSERT_EQ(messages.size(), 2u);
    for (const std::string& message : messages) {
      EXPECT_NE(message.find("do not run the same thing"), std::string::npos) << message;
      EXPECT_NE(message.find(one.what), std::string::npos) << message;
    }
  }
}

TEST(Trainer, SeveralTrainersShareACommunicator) {
  const Random batch;
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    std::vector<double> losses;
    for (const std::int64_t seed : {1, 2, 1}) {
      TrainerOptions options = small({.pipe = 2});
      options.seed = seed;
      Trainer trainer(options, nn::mlp_layers(kWidth, 4), mean_squared_error, communicator);
      losses.push_back(trainer.step(batch.input, batch.target).loss);
    }
    EXPECT_EQ(losses[0], losses[2]);
    EXPECT_NE(losses[0], losses[1]);
  });
}

TEST(Trainer, OneRanksWishToStopReachesAllInTheSameStep) {
  const Random batch;
  comm::run_ranks(4, [&](comm::Communicator& communicator) {
    Trainer trainer(small({.pipe = 2, .data = 2}), nn::mlp_layers(kWidth, 4), mean_squared_error,
                    communicator);
    EXPECT_FALSE(trainer.step(batch.input, batch.target).words.stop);
    if (communicator.rank().value == 2) trainer.words().stop = true;
    EXPECT_TRUE(trainer.step(batch.input, batch.target).words.stop);
  });
}

TEST(Trainer, AParameterWithoutAGradientIsLeftAloneInEveryLayout) {
  class Idle : public nn::Layer {
   public:
    Idle() : idle_(register_parameter("idle", at::full({3}, 2.0))) {}
    at::Tensor forward(const at::Tensor& input) override { return input * 1; }

   private:
    at::Tensor idle_;
  };
  auto model = nn::mlp_layers(kWidth, 3);
  model.push_back({{"idle", "Idle", 3}, [] { return std::make_shared<Idle>(); }});
  const Random batch;
  for (const mesh::Shape mesh : {mesh::Shape{1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
    comm::run_ranks(mesh.pipe * mesh.data, [&](comm::Communicator& communicator) {
      TrainerOptions options = small(mesh);
      options.optimizer.weight_decay = 0.5;
      Trainer trainer(options, model, mean_squared_error, communicator);
      trainer.step(batch.input, batch.target);
      bool is_here = false;
      for (const auto& [name, tensor] : trainer.parameters()) {
        if (name != "idle.idle") continue;
        is_here = true;
        EXPECT_TRUE(at::equal(tensor, at::full({3}, 2.0)));
      }
      EXPECT_EQ(is_here, trainer.rank_model().is_last_stage());
    });
  }
}

template <class Body>
std::string refusal_of(std::int32_t ranks, const Body& body) {
  try {
    comm::run_ranks(ranks, body, std::chrono::seconds(5));
  } catch (const Error& error) {
    return error.message();
  }
  ADD_FAILURE() << "was accepted";
  return {};
}

TEST(Trainer, WhatDoesNotFitIsRefusedByName) {
  const auto build = [](const TrainerOptions& options, std::int64_t layers) {
    return [=](comm::Communicator& communicator) {
      Trainer(options, nn::mlp_layers(kWidth, layers), mean_squared_error, communicator);
    };
  };
  const auto contains = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  contains(refusal_of(2, build(small({.pipe = 2}), 1)), "2 stages");
  contains(refusal_of(2, build(small({.pipe = 3}), 4)), "pipe(3)");
  contains(refusal_of(1,
                      [](comm::Communicator& communicator) {
                        auto model = nn::mlp_layers(kWidth, 1);
                        model.push_back(model[0]);
                        Trainer(small({}), model, mean_squared_error, communicator);
                      }),
           "two layers of the model are called \"0\"");
  contains(refusal_of(1,
                      [](comm::Communicator& communicator) {
                        Trainer trainer(small({}), nn::mlp_layers(kWidth, 1), mean_squared_error,
                                        communicator);
                        trainer.step(at::rand({3, kWidth}), at::rand({3, kWidth}));
                      }),
           "shape [3, 6] does not split into 4 microbatches: each needs a sample");
}

TEST(Trainer, BatchesOfAStepAreCounted) {
  const auto stepping = [](const std::function<std::vector<Microbatches>(Rank)>& batches) {
    return [=](comm::Communicator& communicator) {
      Trainer trainer(small({.data = 2}), nn::mlp_layers(kWidth, 1), mean_squared_error,
                      communicator);
      trainer.step(batches(communicator.rank()));
    };
  };
  const auto in = [](std::int32_t microbatches) {
    const auto cut = split(nn::Values(at::rand({8, kWidth})), microbatches);
    return Microbatches{.inputs = cut, .targets = cut};
  };
  EXPECT_EQ(refusal_of(2, stepping([](Rank) { return std::vector<Microbatches>(); })),
            "the step has no batch");
  EXPECT_EQ(
      refusal_of(2, stepping([&](Rank rank) { return std::vector{in(rank.value == 1 ? 2 : 4)}; })),
      "a batch of the step has inputs of 2 microbatches, its schedule has 4");
  const std::string counts =
      refusal_of(2, stepping([&](Rank rank) {
                   return rank.value == 1 ? std::vector{in(4), in(4)} : std::vector{in(4)};
                 }));
  EXPECT_TRUE(counts == "replica 1 has a step of 2 batches, replica 0 one of 1" ||
              counts == "replica 0 has a step of 1 batches, replica 1 one of 2")
      << counts;
}

}  // namespace
}  // namespace penstock::train
