// Learning rates as functions of the step, and groups of parameters with options of their own: what
// a plain loop with torch::optim gives, and the same in every layout and checkpoint.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <map>
#include <mutex>
#include <string>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/saving/checkpoints.h"
#include "tests/support/message_of.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/model_kinds.h"

namespace penstock::train {
namespace {

using saving::Checkpoints;
using testing_support::message_of;
using testing_support::same_bits;
using Tensors = std::map<std::string, at::Tensor>;

std::vector<nn::LayerSpec> model() {
  return {linear("a"), nn::layer<torch::nn::Tanh>("tanh"), linear("b")};
}

constexpr int kSteps = 4;
constexpr std::array kNames = {"a.weight", "a.bias", "b.weight", "b.bias"};

double rate(std::int64_t updates) { return 0.1 / static_cast<double>(1 + updates); }

Tensors weights_of(Trainer& trainer) {
  Tensors weights;
  for (const char* name : kNames) weights[name] = trainer.get(name);
  return weights;
}

Tensors trained(const TrainerOptions& options, const Batch2& batch) {
  Tensors weights;
  std::mutex mutex;
  comm::run_ranks(options.mesh.pipe * options.mesh.data, [&](comm::Communicator& communicator) {
    Trainer trainer(options, model(), squares, communicator);
    for (int step = 0; step < kSteps; ++step) trainer.step(batch.inputs, batch.targets);
    const Tensors mine = weights_of(trainer);
    const std::lock_guard lock(mutex);
    weights = mine;
  });
  return weights;
}

// By a plain loop: `groups` of the parameters' names make the optimizer.
struct Plain {
  Plain() {
    std::int64_t number = 0;
    for (const nn::LayerSpec& spec : model()) {
      layers.push_back(nn::build(spec, 1234, number++));
      for (const auto& item : layers.back()->named_parameters()) {
        named[spec.meta.name + "." + item.key()] = item.value();
      }
    }
  }
  void step(torch::optim::Optimizer& optimizer, const Batch2& batch) {
    optimizer.zero_grad();
    nn::Values values = batch.inputs;
    for (const auto& layer : layers) values = layer->forward_values(values);
    squares(values[0], batch.targets[0]).backward();
    optimizer.step();
  }
  std::vector<std::shared_ptr<nn::Layer>> layers;
  Tensors named;
};

void expect_near(const Tensors& found, const Tensors& expected) {
  for (const auto& [name, tensor] : expected) {
    EXPECT_LE((found.at(name) - tensor.detach()).abs().max().item<double>(), 1e-6) << name;
  }
}

TEST(Rates, OfAFunctionAreThoseOfAPlainLoop) {
  const Batch2 batch = vectors(8, 0);
  Plain plain;
  torch::optim::SGD optimizer({plain.named.at("a.weight"), plain.named.at("a.bias"),
                               plain.named.at("b.weight"), plain.named.at("b.bias")},
                              0.1);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.param_groups()[0].options().set_lr(rate(step));
    plain.step(optimizer, batch);
  }
  for (const mesh::Shape mesh : {mesh::Shape{1, 1}, {2, 1}, {1, 2}}) {
    expect_near(trained({.mesh = mesh,
                         .optimizer = {.type = config::OptimizerType::Sgd},
                         .learning_rate = rate},
                        batch),
                plain.named);
  }
}

TEST(Rates, OfAFunctionGoOnInAResumedRun) {
  const Batch2 batch = vectors(8, 0);
  const testing_support::TemporaryFolder folder;
  comm::run_ranks(1, [&](comm::Communicator& communicator) {
    execute::Progress progress;
    const TrainerOptions options{.learning_rate = rate};
    Trainer first(options, model(), squares, communicator);
    first.step(batch.inputs, batch.targets);
    EXPECT_EQ(first.step(batch.inputs, batch.targets).lr, rate(1));
    Checkpoints(first, communicator, progress, {.directory = folder.path()}, {}).save();
    Trainer second(options, model(), squares, communicator);
    ASSERT_TRUE(
        Checkpoints(second, communicator, progress, {.directory = folder.path()}, {}).resume());
    EXPECT_EQ(second.step(batch.inputs, batch.targets).lr, rate(2));
  });
}

TEST(Rates, ThatAreNoneOrDifferBetweenRanksAreRefused) {
  const Batch2 batch = vectors(8, 0);
  const auto refusal = [&](const mesh::Shape& mesh, const std::function<double(int)>& of_rank) {
    return message_of([&] {
      comm::run_ranks(2, [&](comm::Communicator& communicator) {
        const int rank = communicator.rank().value;
        Trainer trainer({.mesh = mesh, .learning_rate = [&, rank](auto) { return of_rank(rank); }},
                        model(), squares, communicator);
        trainer.step(batch.inputs, batch.targets);
      });
    });
  };
  for (const mesh::Shape mesh : {mesh::Shape{2, 1}, {1, 2}}) {
    const std::string differ = refusal(mesh, [](int rank) { return rank + 1.0; });
    EXPECT_NE(differ.find("rank 0 has learning rate=1, rank 1 has learning rate=2"),
              std::string::npos)
        << differ;
    const std::string none = refusal(mesh, [](int) { return NAN; });
    EXPECT_NE(none.find("the function of the learning rate gives nan for 0"), std::string::npos)
        << none;
  }
  EXPECT_NE(message_of([&] {
              comm::run_ranks(1, [&](comm::Communicator& communicator) {
                const TrainerOptions both{
                    .scheduler = {.type = config::SchedulerType::WarmupCosine},
                    .learning_rate = rate};
                Trainer(both, model(), squares, communicator);
              });
            }).find("a learning_rate and a scheduler"),
            std::string::npos);
}

TrainerOptions grouped() {
  return {.optimizer = {.lr = 0.01,
                        .weight_decay = 0.5,
                        .groups = {{.parameters = "^b\\.", .lr = 0.1, .weight_decay = 0.2},
                                   {.parameters = "bias$", .weight_decay = 0}}}};
}

TEST(Groups, AreThoseOfAPlainLoop) {
  const Batch2 batch = vectors(8, 0);
  Plain plain;
  const auto group = [&](std::vector<const char*> names, double lr, double decay) {
    std::vector<at::Tensor> tensors;
    for (const char* name : names) tensors.push_back(plain.named.at(name));
    return torch::optim::OptimizerParamGroup(
        tensors, std::make_unique<torch::optim::AdamWOptions>(
                     torch::optim::AdamWOptions(lr).weight_decay(decay)));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.push_back(group({"b.weight", "b.bias"}, 0.1, 0.2));
  groups.push_back(group({"a.bias"}, 0.01, 0));
  groups.push_back(group({"a.weight"}, 0.01, 0.5));
  torch::optim::AdamW optimizer(groups, torch::optim::AdamWOptions(0.5).weight_decay(0.7));
  for (int step = 0; step < kSteps; ++step) plain.step(optimizer, batch);
  expect_near(trained(grouped(), batch), plain.named);
}

TEST(Groups, AreTheSameInEveryLayoutAndStageOfZero) {
  const Batch2 batch = vectors(8, 0);
  const Tensors expected = trained(grouped(), batch);
  for (const mesh::Shape mesh : {mesh::Shape{2, 1}, {1, 2}, {2, 2}}) {
    for (const ZeroStage stage : {ZeroStage::Off, ZeroStage::OptimizerStates, ZeroStage::Gradients,
                                  ZeroStage::Parameters}) {
      TrainerOptions options = grouped();
      options.mesh = mesh;
      options.zero.stage = stage;
      const Tensors found = trained(options, batch);
      for (const auto& [name, tensor] : expected) {
        EXPECT_TRUE(same_bits(found.at(name), tensor)) << name;
      }
    }
  }
}

// Saved by two replicas under ZeRO 2, gone on with by two stages, and by one rank.
TEST(Groups, GoOnFromACheckpointOfAnotherLayout) {
  const Batch2 batch = vectors(8, 0);
  const testing_support::TemporaryFolder folder;
  const Tensors expected = trained(grouped(), batch);
  const auto run = [&](const mesh::Shape& mesh, ZeroStage stage, bool resumes) {
    TrainerOptions options = grouped();
    options.mesh = mesh;
    options.zero.stage = stage;
    comm::run_ranks(mesh.pipe * mesh.data, [&](comm::Communicator& communicator) {
      execute::Progress progress;
      Trainer trainer(options, model(), squares, communicator);
      Checkpoints checkpoints(trainer, communicator, progress, {.directory = folder.path()}, {});
      ASSERT_EQ(resumes && checkpoints.resume(), resumes);
      for (int step = 0; step < kSteps / 2; ++step) trainer.step(batch.inputs, batch.targets);
      if (!resumes) return checkpoints.save();
      for (const auto& [name, tensor] : weights_of(trainer)) {
        EXPECT_TRUE(same_bits(tensor, expected.at(name))) << name;
      }
    });
  };
  run({1, 2}, ZeroStage::Gradients, false);
  run({2, 1}, ZeroStage::Off, true);
  run({1, 2}, ZeroStage::Parameters, true);
  run({1, 1}, ZeroStage::Off, true);
}

TEST(Groups, WithoutAParameterOrAPatternAreRefusedOnEveryRank) {
  const auto refusal = [&](const config::OptimizerConfig& optimizer) {
    return message_of([&] {
      comm::run_ranks(2, [&](comm::Communicator& communicator) {
        Trainer({.mesh = {.pipe = 2}, .optimizer = optimizer}, model(), squares, communicator);
      });
    });
  };
  const auto says = [](const std::string& said, const std::string& words) {
    EXPECT_NE(said.find(words), std::string::npos) << said;
  };
  says(refusal({.groups = {{.parameters = "norm"}}}),
       "optimizer.groups[0].parameters = \"norm\": is found in no parameter's name");
  says(refusal({.groups = {{.parameters = "a"}, {.parameters = "a.bias"}}}),
       "optimizer.groups[1].parameters = \"a.bias\": is found in no parameter's name that an "
       "earlier group has not");
  says(refusal({.groups = {{.parameters = "("}}}), "not a regular expression");
  says(refusal({.lr = 0, .groups = {{.parameters = "a", .lr = 0.1}}}),
       "rates of groups are in ratio to optimizer.params.lr, which is 0");
}

TEST(TorchOptions, StandForOurOwn) {
  const Batch2 batch = vectors(8, 0);
  comm::run_ranks(1, [&](comm::Communicator& communicator) {
    Trainer ours({.optimizer = {.type = config::OptimizerType::Sgd,
                                .lr = 0.1,
                                .momentum = 0.9,
                                .nesterov = true},
                  .gradient_clipping = 0.05},
                 model(), squares, communicator);
    Trainer torchs({.optimizer = torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true),
                    .gradient_clipping = 0.05},
                   model(), squares, communicator);
    Trainer adam({.optimizer = torch::optim::AdamWOptions(1e-3)}, model(), squares, communicator);
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_EQ(ours.step(batch.inputs, batch.targets).grad_norm,
                torchs.step(batch.inputs, batch.targets).grad_norm);
    }
    EXPECT_EQ(adam.step(batch.inputs, batch.targets).lr, 1e-3);
    for (const char* name : kNames) EXPECT_TRUE(same_bits(ours.get(name), torchs.get(name)));
  });
}

}  // namespace
}  // namespace penstock::train
