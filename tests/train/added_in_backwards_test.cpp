// What layers see and add within a backward: gradients of the loss itself, which are divided where
// they are summed, whatever the losses of microbatches count.
#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tanh.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <map>
#include <mutex>

#include "penstock/core/text.h"
#include "tests/train/model_kinds.h"

namespace penstock::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Tensors = std::map<std::string, at::Tensor>;

constexpr std::int64_t kSide = 5;

// Its second input gets the gradient 1, as if it were added to the loss.
struct Adds : torch::autograd::Function<Adds> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& carrier, const at::Tensor&) {
    return carrier.clone();
  }
  static variable_list backward(AutogradContext*, const variable_list& gradients) {
    return {gradients[0], at::ones({})};
  }
};

class Balanced : public nn::Layer {
 public:
  Balanced()
      : weight_(register_parameter("weight", at::rand({kSide, kSide}))),
        router_(register_parameter("router", at::rand({kSide}))) {}
  at::Tensor forward(const at::Tensor& input) override {
    const at::Tensor output = at::tanh(input.matmul(weight_));
    if (output.requires_grad()) {
      output.register_hook(
          [this](const at::Tensor& gradient) { seen.push_back(gradient.clone()); });
    }
    return Adds::apply(output, (input.detach() * router_).pow(2).mean());
  }
  std::vector<at::Tensor> seen;

 private:
  at::Tensor weight_;
  at::Tensor router_;
};

std::vector<nn::LayerSpec> balanced_layers() {
  return {nn::layer("a", [] { return std::make_shared<Balanced>(); }),
          nn::layer("b", [] { return std::make_shared<Balanced>(); })};
}

struct Case {
  const char* name;
  LossScale scale;
  bool is_sum = false;
};

// Of 10 samples in 4 microbatches.
std::vector<Case> cases() {
  return {{"Samples", LossScale::samples()},
          {"Counted", LossScale::counted([](const nn::Values& targets) {
             return static_cast<double>(targets[0].size(0) * targets[0].size(0));
           })},
          {"Sum", LossScale::sum(), /*is_sum=*/true}};
}

nn::Loss loss_of(bool is_sum) {
  return [is_sum](const nn::Values& outputs, const nn::Values& targets) {
    return at::mse_loss(outputs[0], targets[0], is_sum ? at::Reduction::Sum : at::Reduction::Mean);
  };
}

Microbatches batch() {
  static const at::Tensor all = at::rand({2, 10, kSide});
  return {split(nn::Values(all[0]), 4), split(nn::Values(all[1]), 4)};
}

Tensors gradients(TrainerOptions options, const Case& each) {
  Tensors result;
  std::mutex mutex;
  const Microbatches all = batch();
  options.microbatches = 4 / options.mesh.data;
  options.loss_scale = each.scale;
  comm::run_ranks(options.mesh.pipe * options.mesh.data, [&](comm::Communicator& communicator) {
    Trainer trainer(options, balanced_layers(), loss_of(each.is_sum), communicator);
    const std::int64_t replica = trainer.layout().mesh.coordinate(communicator.rank()).data;
    Microbatches mine;
    for (std::int64_t m = 0; m < options.microbatches; ++m) {
      const auto at = static_cast<std::size_t>(replica * options.microbatches + m);
      mine.inputs.push_back(all.inputs[at]);
      mine.targets.push_back(all.targets[at]);
    }
    trainer.compute_gradients({mine});
    const std::lock_guard lock(mutex);
    for (const auto& [name, tensor] : trainer.parameters()) result[name] = tensor.grad().clone();
  });
  return result;
}

struct Plain {
  Tensors gradients;
  std::vector<at::Tensor> seen;  // By the last layer.
};

// Each microbatch's loss with its weight, and what is added, divided by the number of microbatches.
Plain plain(const Case& each) {
  std::vector<std::shared_ptr<Balanced>> layers;
  const auto model = balanced_layers();
  Plain result;
  for (std::size_t i = 0; i < model.size(); ++i) {
    layers.push_back(std::dynamic_pointer_cast<Balanced>(
        nn::build(model[i], TrainerOptions{}.seed, static_cast<std::int64_t>(i))));
  }
  const Microbatches all = batch();
  std::vector<double> weights;
  for (std::size_t m = 0; m < 4; ++m) {
    weights.push_back(
        each.scale.weight(static_cast<double>(all.inputs[m][0].size(0)), all.targets[m]));
  }
  double mean = 0.0;
  for (const double weight : weights) mean += weight / 4;
  for (std::size_t m = 0; m < 4; ++m) {
    at::Tensor value = all.inputs[m][0];
    for (const auto& layer : layers) value = layer->forward(value);
    const at::Tensor loss = loss_of(each.is_sum)(nn::Values(value), all.targets[m]);
    torch::autograd::backward({loss}, {at::full({}, each.is_sum ? 1.0 : weights[m] / mean)});
  }
  for (std::size_t i = 0; i < model.size(); ++i) {
    for (const auto& parameter : layers[i]->named_parameters()) {
      const at::Tensor& sum = parameter.value().grad();
      result.gradients[penstock::str(model[i].meta.name, ".", parameter.key())] =
          each.is_sum ? sum : sum / 4;
    }
  }
  result.seen = layers.back()->seen;
  return result;
}

TEST(AddedInBackwards, CountsLikeTheLossesOfMicrobatchesInEveryLayout) {
  for (const Case& each : cases()) {
    const Plain expected = plain(each);
    for (const char* schedule : {"1f1b", "zb_h1", "gpipe"}) {
      for (const mesh::Shape shape :
           {mesh::Shape{}, {.pipe = 2}, {.data = 2}, {.pipe = 2, .data = 2}}) {
        if (shape.pipe == 1 && std::string(schedule) == "zb_h1") continue;
        SCOPED_TRACE(penstock::str(each.name, " ", schedule, " ", shape.pipe, "x", shape.data));
        const Tensors found = gradients({.mesh = shape, .schedule = schedule}, each);
        ASSERT_EQ(found.size(), expected.gradients.size());
        for (const auto& [name, gradient] : expected.gradients) {
          EXPECT_LE((found.at(name) - gradient).abs().max().item<double>(),
                    1e-6 * gradient.abs().max().item<double>())
              << name;
        }
      }
    }
  }
}

// Equal microbatches: nothing in a backward knows how many there are.
TEST(AddedInBackwards, ALayerSeesTheGradientOfTheLossItself) {
  const nn::Values input(at::rand({8, kSide})), target(at::rand({8, kSide}));
  std::vector<std::vector<at::Tensor>> seen;
  for (const std::int32_t microbatches : {1, 4}) {
    std::shared_ptr<Balanced> made;
    const std::vector<nn::LayerSpec> model = {
        nn::layer("a", [&] { return made = std::make_shared<Balanced>(); })};
    comm::run_ranks(1, [&](comm::Communicator& communicator) {
      Trainer trainer({.microbatches = microbatches}, model, loss_of(false), communicator);
      std::vector<Microbatches> batches(1);
      for (std::int32_t m = 0; m < microbatches; ++m) {
        batches[0].inputs.push_back(input);
        batches[0].targets.push_back(target);
      }
      trainer.compute_gradients(batches);
    });
    seen.push_back(made->seen);
  }
  ASSERT_EQ(seen[1].size(), 4U);
  for (const at::Tensor& each : seen[1]) EXPECT_TRUE(at::equal(each, seen[0][0]));
}

}  // namespace
}  // namespace penstock::train
