#include "penstock/runtime/update/optimizer.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>

namespace penstock::update {
namespace {

constexpr int kSteps = 10;

std::vector<at::Tensor> leaves(const std::vector<at::Tensor>& values) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& value : values) leaves.push_back(value.clone().requires_grad_(true));
  return leaves;
}

// The largest |ours - torch's| over the largest |torch's|, after each of ten steps with the same
// gradients and a learning rate that changes.
template <class TorchOptimizer, class Options>
double difference(const config::OptimizerConfig& config, const Options& options,
                  at::ScalarType type = at::kFloat) {
  const std::vector<at::Tensor> start = {at::randn({7, 5}, type), at::randn({33}, type),
                                         at::randn({1}, type)};
  const auto ours = leaves(start), theirs = leaves(start);
  Optimizer optimizer(config, ours);
  TorchOptimizer reference(theirs, options);
  double worst = 0.0;
  for (int step = 0; step < kSteps; ++step) {
    const double lr = config.lr / (1 + step);
    for (std::size_t i = 0; i < start.size(); ++i) {
      const at::Tensor gradient = at::randn(start[i].sizes(), type) * std::pow(10.0, step % 3 - 1);
      ours[i].mutable_grad() = gradient.clone();
      theirs[i].mutable_grad() = gradient.clone();
    }
    const auto gradient_before = ours[0].grad().clone();
    optimizer.step(lr);
    EXPECT_TRUE(at::equal(ours[0].grad(), gradient_before)) << "gradients are left as they were";
    for (auto& group : reference.param_groups()) group.options().set_lr(lr);
    reference.step();
    for (std::size_t i = 0; i < start.size(); ++i) {
      EXPECT_FALSE(at::equal(ours[i], start[i])) << "nothing was learnt";
      worst = std::max(worst,
                       ((ours[i] - theirs[i]).abs().max() / theirs[i].abs().max()).item<double>());
    }
  }
  return worst;
}

// The fused kernel and torch::optim order their roundings differently, by a few units in the last
// place of the update a step; ten steps stay below 1e-6 of the largest weight.
TEST(AdamW, IsTorchsWithin1e6OverTenSteps) {
  for (const double weight_decay : {0.0, 0.1}) {
    const double worst = difference<torch::optim::AdamW>(
        {.lr = 1e-2, .betas = {0.9, 0.95}, .eps = 1e-8, .weight_decay = weight_decay},
        torch::optim::AdamWOptions(1e-2).betas({0.9, 0.95}).weight_decay(weight_decay));
    RecordProperty(weight_decay == 0 ? "plain" : "decay", std::to_string(worst * 1e9) + "e-9");
    EXPECT_LE(worst, 1e-6);
  }
}

TEST(Sgd, IsTorchsWithin1e6OverTenSteps) {
  for (const double momentum : {0.0, 0.9}) {
    for (const double weight_decay : {0.0, 0.1}) {
      const double worst = difference<torch::optim::SGD>(
          {.type = config::OptimizerType::Sgd,
           .lr = 1e-2,
           .weight_decay = weight_decay,
           .momentum = momentum},
          torch::optim::SGDOptions(1e-2).momentum(momentum).weight_decay(weight_decay));
      EXPECT_LE(worst, 1e-6) << momentum << ", " << weight_decay;
    }
  }
}

// In double, where ten steps' roundings are far below any mistake.
constexpr double kRoundings = 1e-13;

TEST(Sgd, WithNesterovAndDampeningIsTorchs) {
  for (const bool nesterov : {false, true}) {
    const double dampening = nesterov ? 0.0 : 0.3;
    const double worst = difference<torch::optim::SGD>({.type = config::OptimizerType::Sgd,
                                                        .lr = 1e-2,
                                                        .weight_decay = 0.1,
                                                        .momentum = 0.9,
                                                        .dampening = dampening,
                                                        .nesterov = nesterov},
                                                       torch::optim::SGDOptions(1e-2)
                                                           .momentum(0.9)
                                                           .weight_decay(0.1)
                                                           .dampening(dampening)
                                                           .nesterov(nesterov),
                                                       at::kDouble);
    EXPECT_LE(worst, kRoundings) << nesterov;
  }
}

TEST(Adam, WithAmsgradIsTorchs) {
  EXPECT_LE(difference<torch::optim::AdamW>(
                {.lr = 1e-2, .weight_decay = 0.1, .amsgrad = true},
                torch::optim::AdamWOptions(1e-2).weight_decay(0.1).amsgrad(true), at::kDouble),
            kRoundings);
  EXPECT_LE(difference<torch::optim::Adam>(
                {.type = config::OptimizerType::Adam,
                 .lr = 1e-2,
                 .weight_decay = 0.1,
                 .amsgrad = true,
                 .adam_w_mode = false},
                torch::optim::AdamOptions(1e-2).weight_decay(0.1).amsgrad(true), at::kDouble),
            kRoundings);
}

// Also one with dampening, whose first step is another.
TEST(Optimizer, StatesThatAreResetAreAsBeforeAFirstStep) {
  const config::OptimizerConfig config{
      .type = config::OptimizerType::Sgd, .lr = 0.1, .momentum = 0.9, .dampening = 0.5};
  const auto used = leaves({at::ones({3})}), fresh = leaves({at::ones({3})});
  Optimizer optimizer(config, used);
  used[0].mutable_grad() = at::rand({3});
  optimizer.step(0.1);
  optimizer.reset_states(0);
  EXPECT_TRUE(optimizer.states(0).empty());
  used[0].detach().fill_(1);
  const at::Tensor gradient = at::rand({3});
  used[0].mutable_grad() = gradient;
  fresh[0].mutable_grad() = gradient;
  optimizer.step(0.1);
  Optimizer(config, fresh).step(0.1);
  EXPECT_TRUE(at::equal(used[0], fresh[0]));
}

TEST(Optimizer, AParameterWithoutAGradientStaysAsItIsAndStartsLaterAsIfNew) {
  for (const auto type : {config::OptimizerType::AdamW, config::OptimizerType::Sgd}) {
    const config::OptimizerConfig config{
        .type = type, .lr = 0.1, .weight_decay = 0.5, .momentum = 0.9};
    const auto late = leaves({at::ones({3}), at::ones({3})});
    const auto fresh = leaves({at::ones({3})});
    Optimizer optimizer(config, late);
    late[0].mutable_grad() = at::ones({3});
    optimizer.step(0.1);
    EXPECT_TRUE(at::equal(late[1], at::ones({3})));
    EXPECT_FALSE(at::equal(late[0], at::ones({3})));
    const at::Tensor gradient = at::rand({3});
    late[1].mutable_grad() = gradient;
    fresh[0].mutable_grad() = gradient;
    optimizer.step(0.1);
    Optimizer(config, fresh).step(0.1);
    EXPECT_TRUE(at::equal(late[1], fresh[0]));
  }
}

}  // namespace
}  // namespace penstock::update
