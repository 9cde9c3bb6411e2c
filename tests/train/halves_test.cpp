// The halves of a step: gradients that a program changes between them are clipped by their own
// norm, and nothing is computed twice, or applied twice, in silence.
#include <ATen/ops/rand.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "tests/support/message_of.h"
#include "tests/support/same_bits.h"
#include "tests/train/model_kinds.h"

namespace penstock::train {
namespace {

using testing_support::message_of;
using testing_support::same_bits;

constexpr double kLimit = 0.02;  // Of a gradient's element.
constexpr double kClipping = 0.05;

std::vector<nn::LayerSpec> model() {
  return {linear("a"), nn::layer<torch::nn::Tanh>("tanh"), linear("b")};
}

TrainerOptions options_of(ZeroStage stage, const mesh::Shape& mesh, double clipping) {
  return {.mesh = mesh,
          .optimizer = {.type = config::OptimizerType::Sgd, .lr = 0.1},
          .gradient_clipping = clipping,
          .zero = {.stage = stage}};
}

using Weights = std::map<std::string, at::Tensor>;

struct Plain {
  Plain() {
    std::int64_t number = 0;
    for (const nn::LayerSpec& spec : model()) {
      layers.push_back(nn::build(spec, 1234, number++));
      for (const auto& item : layers.back()->named_parameters()) {
        named[spec.meta.name + "." + item.key()] = item.value();
        trained.push_back(item.value());
      }
    }
  }
  at::Tensor loss(const Batch2& batch) {
    nn::Values values = batch.inputs;
    for (const auto& layer : layers) values = layer->forward_values(values);
    return squares(values[0], batch.targets[0]);
  }
  std::vector<std::shared_ptr<nn::Layer>> layers;
  Weights named;
  std::vector<at::Tensor> trained;
};

void expect_weights(Trainer& trainer, const Weights& expected, double tolerance) {
  const auto whole = trainer.rank_model().whole_parameters();
  for (const auto& [name, tensor] : trainer.parameters()) {
    const at::Tensor off = (tensor.detach().to(at::kFloat) - expected.at(name).detach()).abs();
    EXPECT_LE(off.max().item<double>(), tolerance) << name;
  }
}

constexpr std::array kStages = {ZeroStage::Off, ZeroStage::OptimizerStates, ZeroStage::Gradients,
                                ZeroStage::Parameters};

// By replicas of one batch, or by stages: the gradient is that of the batch.
TEST(Halves, ChangedGradientsAreClippedByTheirOwnNorm) {
  const Batch2 batch = vectors(8, 0);
  for (const double clipping : {0.0, kClipping}) {
    Plain plain;
    torch::optim::SGD optimizer(plain.trained, 0.1);
    double norm = 0;
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      plain.loss(batch).backward();
      torch::nn::utils::clip_grad_value_(plain.trained, kLimit);
      norm = torch::nn::utils::clip_grad_norm_(plain.trained, clipping > 0 ? clipping : 1e9);
      optimizer.step();
    }
    for (const ZeroStage stage : kStages) {
      for (const mesh::Shape mesh : {mesh::Shape{2, 1}, {1, 2}}) {
        SCOPED_TRACE(str("ZeRO ", config::number_of(stage), " ", mesh.pipe, "x", mesh.data,
                         " clipping ", clipping));
        comm::run_ranks(2, [&](comm::Communicator& communicator) {
          Trainer trainer(options_of(stage, mesh, clipping), model(), squares, communicator);
          StepReport report;
          for (int step = 0; step < 3; ++step) {
            report = trainer.compute_gradients(batch.inputs, batch.targets);
            for (const auto& [name, part, first] : trainer.gradients()) {
              part.grad().clamp_(-kLimit, kLimit);
            }
            trainer.update(report);
          }
          EXPECT_NEAR(report.grad_norm, norm, 1e-6);
          EXPECT_EQ(trainer.steps_taken(), 3);
          expect_weights(trainer, plain.named, 1e-6);
        });
      }
    }
  }
}

// Of short types, too, and without the gradient scale: a limit means what it says.
TEST(Halves, GradientsHaveNoGradientScaleInThem) {
  const Batch2 batch = vectors(8, 0);
  for (const ZeroStage stage : kStages) {
    std::vector<Weights> results;
    for (const double scale : {1.0, 1024.0}) {
      TrainerOptions options = options_of(stage, {1, 2}, kClipping);
      options.precision = {.type = at::kHalf,
                           .sums = at::kFloat,
                           .gradient_scale = {.enabled = true, .loss_scale = scale}};
      Weights& weights = results.emplace_back();
      std::mutex mutex;
      comm::run_ranks(2, [&](comm::Communicator& communicator) {
        Trainer trainer(options, model(), squares, communicator);
        for (int step = 0; step < 3; ++step) {
          StepReport report = trainer.compute_gradients(batch.inputs, batch.targets);
          for (const auto& [name, part, first] : trainer.gradients()) {
            EXPECT_EQ(part.grad().scalar_type(), at::kFloat);
            part.grad().clamp_(-kLimit, kLimit);
          }
          trainer.update(report);
          EXPECT_FALSE(report.skipped);
        }
        for (const char* name : {"a.weight", "b.weight"}) {
          const at::Tensor weight = trainer.get(name);
          const std::lock_guard lock(mutex);
          weights[name] = weight;
        }
      });
    }
    for (const auto& [name, weight] : results[0]) {
      EXPECT_LE((results[1].at(name) - weight).abs().max().item<double>(), 1e-4) << name;
    }
  }
}

TEST(Halves, HaveTheBitsOfAStepWhereNothingIsChanged) {
  const Batch2 batch = vectors(8, 0);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const ZeroStage stage : kStages) {
      TrainerOptions options = options_of(stage, {1, 2}, kClipping);
      options.precision.type = type;
      options.precision.gradient_scale = {.enabled = type == at::kHalf, .loss_scale = 64};
      comm::run_ranks(2, [&](comm::Communicator& communicator) {
        Trainer whole(options, model(), squares, communicator);
        Trainer halves(options, model(), squares, communicator);
        for (int step = 0; step < 3; ++step) {
          const StepReport expected = whole.step(batch.inputs, batch.targets);
          StepReport report = halves.compute_gradients(batch.inputs, batch.targets);
          EXPECT_EQ(report.grad_norm, expected.grad_norm);
          halves.update(report);
          EXPECT_EQ(report.grad_norm, expected.grad_norm);
          EXPECT_EQ(report.lr, expected.lr);
        }
        for (const char* name : {"a.weight", "b.bias"}) {
          EXPECT_TRUE(same_bits(whole.get(name), halves.get(name))) << name;
        }
      });
    }
  }
}

TEST(Halves, GradientsAreAddedWhereThatIsAsked) {
  const Batch2 one = vectors(8, 0), other = vectors(8, 0);
  Plain plain;
  torch::optim::SGD optimizer(plain.trained, 0.1);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    plain.loss(one).backward();
    plain.loss(other).backward();
    torch::nn::utils::clip_grad_norm_(plain.trained, kClipping);
    optimizer.step();
  }
  for (const ZeroStage stage : kStages) {
    for (const mesh::Shape mesh : {mesh::Shape{2, 1}, {1, 2}}) {
      comm::run_ranks(2, [&](comm::Communicator& communicator) {
        Trainer trainer(options_of(stage, mesh, kClipping), model(), squares, communicator);
        for (int step = 0; step < 2; ++step) {
          trainer.compute_gradients(one.inputs, one.targets);
          StepReport report =
              trainer.compute_gradients(other.inputs, other.targets, EarlierGradients::Added);
          trainer.update(report);
        }
        EXPECT_EQ(trainer.steps_taken(), 2);
        expect_weights(trainer, plain.named, 1e-6);
      });
    }
  }
}

void expect_says(const std::function<void()>& call, const std::string& words) {
  const std::string said = message_of(call);
  EXPECT_NE(said.find(words), std::string::npos) << said;
}

// Each mistake ends the ranks' communicators, as any failure does: one a run.
TEST(Halves, OutOfOrderAreErrors) {
  const Batch2 batch = vectors(8, 0);
  using Mistake = std::function<void(Trainer&)>;
  const auto compute = [&](Trainer& trainer) {
    return trainer.compute_gradients(batch.inputs, batch.targets);
  };
  const std::vector<std::pair<std::string, Mistake>> mistakes = {
      {"the gradients of step 1 were computed and not applied",
       [&](Trainer& trainer) {
         compute(trainer);
         compute(trainer);
       }},
      {"the gradients of step 1 were computed and not applied",
       [&](Trainer& trainer) {
         compute(trainer);
         trainer.step(batch.inputs, batch.targets);
       }},
      {"update() of step 0: there are no gradients to apply",
       [&](Trainer& trainer) {
         StepReport report;
         trainer.update(report);
       }},
      {"update() of step 1: there are no gradients to apply",
       [&](Trainer& trainer) {
         StepReport report = compute(trainer);
         trainer.update(report);
         trainer.update(report);
       }},
      {"update() of step 1: there are no gradients to apply",
       [&](Trainer& trainer) {
         StepReport report = compute(trainer);
         trainer.zero_grad();
         trainer.update(report);
       }},
      {"update() has the report of step 1, and the gradients that were computed last are those of "
       "step 2",
       [&](Trainer& trainer) {
         StepReport first = compute(trainer);
         trainer.update(first);
         compute(trainer);
         trainer.update(first);
       }},
      {"the gradient of parameter \"a.weight\" is",
       [&](Trainer& trainer) {
         StepReport report = compute(trainer);
         trainer.gradients().front().part.mutable_grad() = at::zeros({3});
         trainer.update(report);
       }},
  };
  for (const auto& [words, mistake] : mistakes) {
    expect_says(
        [&] {
          comm::run_ranks(2, [&](comm::Communicator& communicator) {
            Trainer trainer(options_of(ZeroStage::Off, {1, 2}, 0), model(), squares, communicator);
            mistake(trainer);
          });
        },
        words);
  }
}

TEST(Halves, ZeroGradBeginsAgain) {
  const Batch2 batch = vectors(8, 0);
  comm::run_ranks(1, [&](comm::Communicator& communicator) {
    Trainer trainer(options_of(ZeroStage::Off, {}, 0), model(), squares, communicator);
    const StepReport first = trainer.compute_gradients(batch.inputs, batch.targets);
    trainer.zero_grad();
    for (const auto& [name, tensor] : trainer.parameters()) {
      EXPECT_FALSE(tensor.grad().defined()) << name;
    }
    EXPECT_EQ(trainer.step(batch.inputs, batch.targets).grad_norm, first.grad_norm);
  });
}

// Replaced by one of another type and other strides; or taken away, so that nothing is updated.
TEST(Halves, GradientsMayBeReplacedAndTakenAway) {
  const Batch2 batch = vectors(8, 0);
  comm::run_ranks(1, [&](comm::Communicator& communicator) {
    Trainer trainer(options_of(ZeroStage::Off, {}, 0), model(), squares, communicator);
    const at::Tensor a = trainer.get("a.weight"), b = trainer.get("b.weight");
    const at::Tensor gradient = at::rand({kWidth, kWidth});
    StepReport report = trainer.compute_gradients(batch.inputs, batch.targets);
    for (const auto& [name, tensor] : trainer.parameters()) {
      if (name == "a.weight") tensor.mutable_grad() = gradient.t().to(at::kDouble);
      if (name != "a.weight") tensor.mutable_grad().reset();
    }
    trainer.update(report);
    EXPECT_NEAR(report.grad_norm, gradient.norm().item<double>(), 1e-5);
    EXPECT_LE((trainer.get("a.weight") - (a - 0.1 * gradient.t())).abs().max().item<double>(),
              1e-7);
    EXPECT_TRUE(same_bits(trainer.get("b.weight"), b));
  });
}

// A gradient that is not finite, of a loss that is, may be repaired.
TEST(Halves, AGradientThatOverflowedMayBeRepaired) {
  const Batch2 batch = vectors(8, 0);
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    TrainerOptions options = options_of(ZeroStage::Gradients, {1, 2}, 0);
    options.precision = {.type = at::kHalf, .gradient_scale = {.enabled = true, .loss_scale = 8}};
    Trainer trainer(options, model(), squares, communicator);
    StepReport report = trainer.compute_gradients(batch.inputs, batch.targets);
    for (const auto& each : trainer.gradients()) each.part.grad().fill_(INFINITY);
    trainer.update(report);
    EXPECT_TRUE(report.skipped);
    report = trainer.compute_gradients(batch.inputs, batch.targets);
    for (const auto& each : trainer.gradients()) each.part.grad().fill_(0.5);
    trainer.update(report);
    EXPECT_FALSE(report.skipped);
    EXPECT_EQ(trainer.steps_taken(), 2);
  });
}

TEST(Halves, ReplicasThatChangeGradientsDifferentlyAreToldWhich) {
  const Batch2 batch = vectors(8, 0);
  expect_says(
      [&] {
        comm::run_ranks(2, [&](comm::Communicator& communicator) {
          Trainer trainer(options_of(ZeroStage::Off, {1, 2}, 0), model(), squares, communicator);
          StepReport report = trainer.compute_gradients(batch.inputs, batch.targets);
          trainer.parameters()[1].tensor.grad().add_(communicator.rank().value);
          trainer.update(report);
        });
      },
      "changed gradient a.bias=");
  expect_says(
      [&] {
        comm::run_ranks(2, [&](comm::Communicator& communicator) {
          Trainer trainer(options_of(ZeroStage::Off, {2, 1}, 0), model(), squares, communicator);
          StepReport report = trainer.compute_gradients(batch.inputs, batch.targets);
          report.lr = communicator.rank().value;
          trainer.update(report);
        });
      },
      "rank 0 has learning rate=0, rank 1 has learning rate=1");
}

}  // namespace
}  // namespace penstock::train
