// Optimizers of torch::optim over a Trainer's parameters: what a plain loop with them gives, to the
// bit, and under every stage of ZeRO what whole replicas give.
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim.h>

#include <functional>
#include <map>
#include <memory>
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
using Tensors = std::map<std::string, at::Tensor>;
using torch::optim::Optimizer;
using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(std::vector<at::Tensor>)>;

template <class Class, class Options>
MakeOptimizer makes(const Options& options) {
  return [options](std::vector<at::Tensor> parameters) {
    return std::make_unique<Class>(std::move(parameters), options);
  };
}

const std::map<std::string, MakeOptimizer>& optimizers() {
  static const std::map<std::string, MakeOptimizer> kAll = {
      {"SGD", makes<torch::optim::SGD>(
                  torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01))},
      {"Adam", makes<torch::optim::Adam>(torch::optim::AdamOptions(0.01).amsgrad(true))},
      {"AdamW", makes<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01).weight_decay(0.1))},
      {"RMSprop", makes<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01).momentum(0.5))},
      {"Adagrad", makes<torch::optim::Adagrad>(
                      torch::optim::AdagradOptions(0.1).initial_accumulator_value(0.5))}};
  return kAll;
}

std::vector<nn::LayerSpec> model() {
  return {linear("a"), nn::layer<torch::nn::Tanh>("tanh"), linear("b")};
}

constexpr int kSteps = 4;
constexpr std::array kNames = {"a.weight", "a.bias", "b.weight", "b.bias"};

Tensors trained(const TrainerOptions& options, const MakeOptimizer& make, const Batch2& batch) {
  Tensors weights;
  std::mutex mutex;
  comm::run_ranks(options.mesh.pipe * options.mesh.data, [&](comm::Communicator& communicator) {
    Trainer trainer(options, model(), squares, communicator);
    const auto optimizer = make(trainer.parameters());
    for (int step = 0; step < kSteps; ++step) {
      const StepReport report = trainer.step(batch.inputs, batch.targets, *optimizer);
      EXPECT_EQ(report.step, step + 1);
      EXPECT_EQ(report.lr, optimizer->param_groups()[0].options().get_lr());
    }
    EXPECT_EQ(trainer.steps_taken(), kSteps);
    for (const char* name : kNames) {
      const at::Tensor weight = trainer.get(name);
      const std::lock_guard lock(mutex);
      weights[name] = weight;
    }
  });
  return weights;
}

void expect_same(const Tensors& found, const Tensors& expected) {
  for (const auto& [name, tensor] : expected) {
    EXPECT_TRUE(same_bits(found.at(name), tensor.detach())) << name;
  }
}

TEST(OwnOptimizer, HasTheBitsOfAPlainLoopOnAnyStages) {
  const Batch2 batch = vectors(8, 0);
  for (const auto& [name, make] : optimizers()) {
    SCOPED_TRACE(name);
    Tensors plain;
    std::vector<at::Tensor> parameters;
    std::vector<std::shared_ptr<nn::Layer>> layers;
    std::int64_t number = 0;
    for (const nn::LayerSpec& spec : model()) {
      layers.push_back(nn::build(spec, 1234, number++));
      for (const auto& item : layers.back()->named_parameters()) {
        parameters.push_back(plain[spec.meta.name + "." + item.key()] = item.value());
      }
    }
    const auto optimizer = make(parameters);
    for (int step = 0; step < kSteps; ++step) {
      optimizer->zero_grad();
      nn::Values values = batch.inputs;
      for (const auto& layer : layers) values = layer->forward_values(values);
      squares(values[0], batch.targets[0]).backward();
      optimizer->step();
    }
    expect_same(trained({}, make, batch), plain);
    expect_same(trained({.mesh = {.pipe = 2}}, make, batch), plain);
  }
}

// Where it has this rank's slices, or masters, in the place of the parameters that it was made of.
TEST(OwnOptimizer, HasTheBitsOfWholeReplicasUnderZeroAndUpdatesMasters) {
  const Batch2 batch = vectors(8, 0);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const auto& [name, make] : optimizers()) {
      TrainerOptions options{.mesh = {.data = 2}, .gradient_clipping = 0.05};
      options.precision.type = type;
      const Tensors expected = trained(options, make, batch);
      EXPECT_EQ(expected.at("a.weight").scalar_type(), at::kFloat);
      for (const ZeroStage stage :
           {ZeroStage::OptimizerStates, ZeroStage::Gradients, ZeroStage::Parameters}) {
        if (name == "Adagrad" && stage == ZeroStage::Parameters) continue;  // See below.
        SCOPED_TRACE(str(name, " ZeRO ", config::number_of(stage), " ", c10::toString(type)));
        options.zero.stage = stage;
        expect_same(trained(options, make, batch), expected);
      }
    }
  }
}

TEST(OwnOptimizer, TakesTheSecondHalfOfAStep) {
  const Batch2 batch = vectors(8, 0);
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    const TrainerOptions options{.mesh = {.data = 2}, .zero = {.stage = ZeroStage::Gradients}};
    Trainer halves(options, model(), squares, communicator);
    Trainer whole(options, model(), squares, communicator);
    torch::optim::SGD one(halves.parameters(), 0.1), other(whole.parameters(), 0.1);
    torch::optim::StepLR course(one, 2, 0.5), other_course(other, 2, 0.5);
    for (int step = 0; step < kSteps; ++step) {
      StepReport report = halves.compute_gradients(batch.inputs, batch.targets);
      halves.update(report, one);
      EXPECT_EQ(whole.step(batch.inputs, batch.targets, other).lr, report.lr);
      EXPECT_EQ(report.lr, one.param_groups()[0].options().get_lr());
      course.step();
      other_course.step();
    }
    EXPECT_EQ(one.param_groups()[0].options().get_lr(), 0.05);
    EXPECT_TRUE(same_bits(halves.get("a.weight"), whole.get("a.weight")));
  });
}

// Another form of optimizer, which may look at whole parameters.
class Sign : public torch::optim::Optimizer {
 public:
  explicit Sign(std::vector<at::Tensor> parameters)
      : Optimizer(std::move(parameters), std::make_unique<torch::optim::SGDOptions>(0.01)) {}
  at::Tensor step(LossClosure) override {
    for (auto& group : param_groups()) {
      for (at::Tensor& each : group.params()) {
        if (each.grad().defined()) each.data().sub_(each.grad().sign() * 0.01);
      }
    }
    return {};
  }
};

TEST(OwnOptimizer, ThatCannotUpdateIsRefusedByName) {
  const Batch2 batch = vectors(8, 0);
  using Step = std::function<void(Trainer&)>;
  const auto refusal = [&](const TrainerOptions& options, const Step& step) {
    return message_of([&] {
      comm::run_ranks(2, [&](comm::Communicator& communicator) {
        Trainer trainer(options, model(), squares, communicator);
        step(trainer);
      });
    });
  };
  const auto says = [](const std::string& said, const std::string& words) {
    EXPECT_NE(said.find(words), std::string::npos) << said;
  };
  const TrainerOptions two{.mesh = {.data = 2}};
  const TrainerOptions sharded{.mesh = {.data = 2}, .zero = {.stage = ZeroStage::Gradients}};
  const auto step_with = [&](Trainer& trainer, Optimizer& optimizer) {
    trainer.step(batch.inputs, batch.targets, optimizer);
  };
  says(refusal(two,
               [&](Trainer& trainer) {
                 torch::optim::LBFGS optimizer(trainer.parameters(), 0.1);
                 step_with(trainer, optimizer);
               }),
       "optimizer torch::optim::LBFGS computes the loss several times in a step");
  says(refusal(two,
               [&](Trainer& trainer) {
                 torch::optim::SGD optimizer({at::zeros({3}).requires_grad_()}, 0.1);
                 step_with(trainer, optimizer);
               }),
       "optimizer torch::optim::SGD has a tensor of shape [3] that is no parameter of this");
  says(refusal(sharded,
               [&](Trainer& trainer) {
                 Sign optimizer(trainer.parameters());
                 step_with(trainer, optimizer);
               }),
       "may look at whole parameters, and with ZeRO each rank updates slices of them");
  EXPECT_EQ(refusal(two,
                    [&](Trainer& trainer) {
                      Sign optimizer(trainer.parameters());
                      step_with(trainer, optimizer);
                    }),
            "no error");
  TrainerOptions scheduled = two;
  scheduled.learning_rate = [](std::int64_t) { return 0.1; };
  says(refusal(scheduled,
               [&](Trainer& trainer) {
                 torch::optim::SGD optimizer(trainer.parameters(), 0.1);
                 step_with(trainer, optimizer);
               }),
       "an optimizer of the program's own has its own rates");
  says(refusal(two,
               [&](Trainer& trainer) {
                 torch::optim::SGD optimizer(
                     trainer.parameters(),
                     0.1 * (1 + trainer.rank_model().groups().other_samples.here));
                 step_with(trainer, optimizer);
               }),
       "optimizer of the program=torch::optim::SGD, 0.1");
}

}  // namespace
}  // namespace penstock::train
