// Products of weights: whose kernels compute them, and gradients that are added where they are.
#include "penstock/runtime/nn/products.h"

#include <ATen/Context.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "penstock/runtime/nn/host_products.h"
#include "penstock/runtime/stage/backward.h"
#include "tests/support/operator_names.h"
#include "tests/support/same_bits.h"

namespace penstock::nn {
namespace {

using testing_support::OperatorNames;
using testing_support::same_bits;
double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

// oneDNN's where the processor has it, both in rows that are worth it and in few.
TEST(HostProducts, AreThoseOfTorchInEveryOrderOfMemory) {
  for (const std::int64_t rows : {16, 400, 1200}) {
    const at::Tensor left = at::randn({rows, 200}), right = at::randn({200, 300});
    const at::Tensor expected = at::mm(left.to(at::kDouble), right.to(at::kDouble));
    for (const at::Tensor& a : {left, left.t().contiguous().t()}) {
      for (const at::Tensor& b : {right, right.t().contiguous().t()}) {
        EXPECT_LE(largest_difference(product(a, b), expected), 2e-6);
      }
    }
  }
}

TEST(HostProducts, AddedOnesHaveTheBitsOfTheProductAndAnAddition) {
  for (const std::int64_t inner : {64, 250, 257, 600, 1536, 3000}) {
    const at::Tensor left = at::randn({inner, 310}).t(), right = at::randn({inner, 300});
    const at::Tensor earlier = at::randn({310, 300});
    at::Tensor sum = earlier.clone();
    add_product(sum, left, right);
    EXPECT_TRUE(same_bits(sum, earlier + product(left, right))) << inner;
  }
}

TEST(HostProducts, AreLeftToTorchWithoutOneDnn) {
  const at::Tensor left = at::randn({400, 200}), right = at::randn({200, 300});
  at::globalContext().setUserEnabledMkldnn(false);
  EXPECT_FALSE(has_faster_product(left, right));
  EXPECT_TRUE(same_bits(product(left, right), at::mm(left, right)));
  at::globalContext().setUserEnabledMkldnn(true);
  EXPECT_FALSE(has_faster_product(left.slice(0, 0, 8), right)) << "too few rows";
  EXPECT_FALSE(has_faster_product(left.to(at::kDouble), right.to(at::kDouble)));
}

// So many inputs and outputs are worth oneDNN's call in hundreds of rows.
constexpr std::int64_t kInputs = 256, kOutputs = 160;

struct Weights {
  explicit Weights(const std::vector<std::int64_t>& outputs) {
    for (const std::int64_t out : outputs) {
      linears.push_back({.weight = at::randn({out, kInputs}).requires_grad_(),
                         .bias = at::randn({out}).requires_grad_()});
    }
  }
  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> all;
    for (const Linear& each : linears) {
      all.push_back(each.weight.grad());
      all.push_back(each.bias.grad());
    }
    return all;
  }
  void reset() {
    for (Linear& each : linears) {
      each.weight.mutable_grad().reset();
      each.bias.mutable_grad().reset();
    }
  }
  std::vector<Linear> linears;
};

TEST(Products, AreTorchsLinearsWithTheirGradients) {
  for (const auto& [type, bound] : {std::pair(at::kFloat, 4e-6), {at::kDouble, 1e-14}}) {
    Weights of({kOutputs, 31, 5});
    for (Linear& each : of.linears) {
      each = {.weight = each.weight.detach().to(type).requires_grad_(),
              .bias = each.bias.detach().to(type).requires_grad_()};
    }
    const at::Tensor x = at::randn({2, 130, kInputs}, type).requires_grad_();
    Tensors seeds;
    for (const Linear& each : of.linears) {
      seeds.push_back(at::randn({2, 130, each.weight.size(0)}, type));
    }
    const Tensors ours = linears_of(x, of.linears);
    torch::autograd::backward(ours, seeds);
    const at::Tensor of_x = x.grad();
    const std::vector<at::Tensor> of_weights = of.gradients();
    x.mutable_grad().reset();
    of.reset();
    Tensors theirs;
    for (const Linear& each : of.linears) theirs.push_back(at::linear(x, each.weight, each.bias));
    torch::autograd::backward(theirs, seeds);
    for (std::size_t i = 0; i < ours.size(); ++i) {
      EXPECT_LE(largest_difference(ours[i], theirs[i]), bound);
    }
    EXPECT_LE(largest_difference(of_x, x.grad()), bound);
    const std::vector<at::Tensor> expected = of.gradients();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LE(largest_difference(of_weights[i], expected[i]), bound);
    }
  }
}

// Backwards of some microbatches, by whoever runs them.
template <class Backward>
std::vector<at::Tensor> sums_of(Weights& of, const std::vector<at::Tensor>& inputs,
                                const Backward& backward) {
  of.reset();
  for (const at::Tensor& each : inputs) {
    const at::Tensor x = each.detach().requires_grad_();
    const Tensors outputs = linears_of(x, of.linears);
    Tensors seeds;
    for (const at::Tensor& output : outputs) seeds.push_back(output.detach() * 0.5);
    backward(outputs, seeds, x);
  }
  return of.gradients();
}

std::vector<at::Tensor> inputs_of(int microbatches, std::int64_t rows) {
  std::vector<at::Tensor> all;
  for (int i = 0; i < microbatches; ++i) all.push_back(at::randn({rows, kInputs}));
  return all;
}

void expect_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i])) << i;
}

TEST(Products, GradientsAddedWhereTheyAreHaveTheBitsOfTorchsEngine) {
  for (const std::int64_t rows : {8, 256, 600}) {
    Weights of({kOutputs, 17});
    const std::vector<at::Tensor> inputs = inputs_of(3, rows);
    const auto by_engine = sums_of(of, inputs, [](const auto& outputs, const auto& seeds, auto&) {
      torch::autograd::backward(outputs, seeds);
    });
    expect_same(sums_of(of, inputs,
                        [](const auto& outputs, const auto& seeds, const auto& x) {
                          stage::backward(outputs, seeds, {x});
                        }),
                by_engine);
    expect_same(sums_of(of, inputs,
                        [](const auto& outputs, const auto& seeds, const auto& x) {
                          stage::backward_input(outputs, seeds, {x}).weights.run();
                        }),
                by_engine);
  }
}

TEST(Products, NoPassAddsAGradientWhereOneDnnDoes) {
  Weights of({kOutputs});
  of.linears[0].bias.reset();
  const at::Tensor x = at::randn({256, kInputs}), seed = at::randn({256, kOutputs});
  if (!adds_in_place(seed.t(), x)) GTEST_SKIP() << "this processor adds in a pass of its own";
  stage::backward(linears_of(x, of.linears), {seed}, {});
  const void* first = of.linears[0].weight.grad().const_data_ptr();
  const Tensors outputs = linears_of(x, of.linears);
  const OperatorNames names;
  stage::backward(outputs, {seed}, {});
  EXPECT_EQ(std::ranges::count(OperatorNames::seen(), "aten::add_"), 0);
  EXPECT_EQ(std::ranges::count(OperatorNames::seen(), "penstock::product"), 1);
  EXPECT_EQ(of.linears[0].weight.grad().const_data_ptr(), first);
}

class Counting : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit Counting(int& calls) : calls_(calls) {}
  void operator()(const torch::autograd::Variable& /*parameter*/) override { ++calls_; }

 private:
  int& calls_;
};

TEST(Products, HooksOfAWeightSeeWhatTheySeeOfOtherLayers) {
  Weights of({kOutputs});
  const at::Tensor& weight = of.linears[0].weight;
  int accumulations = 0;
  torch::autograd::impl::post_acc_grad_hooks(weight) = std::make_unique<Counting>(accumulations);
  const std::vector<at::Tensor> inputs = inputs_of(2, 256);
  const auto by_stage = [](const auto& outputs, const auto& seeds, const auto& x) {
    stage::backward(outputs, seeds, {x});
  };
  const auto unseen = sums_of(of, inputs, by_stage);
  EXPECT_EQ(accumulations, 2);
  std::vector<at::Tensor> seen;
  weight.register_hook([&](const at::Tensor& gradient) { seen.push_back(gradient.clone()); });
  expect_same(sums_of(of, inputs, by_stage), unseen);
  ASSERT_EQ(seen.size(), 2U);
  EXPECT_TRUE(same_bits(seen[0] + seen[1], unseen[0]));
}

TEST(Products, WeightsThatAreNotTrainedGetNoGradient) {
  Weights of({kOutputs});
  of.linears[0].weight.requires_grad_(false);
  const auto gradients =
      sums_of(of, inputs_of(1, 256), [](const auto& outputs, const auto& seeds, const auto& x) {
        stage::backward(outputs, seeds, {x});
      });
  EXPECT_FALSE(gradients[0].defined());
  EXPECT_TRUE(gradients[1].defined());
}

}  // namespace
}  // namespace penstock::nn
