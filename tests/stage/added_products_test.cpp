// Gradients of torch's linears that a backward adds where earlier microbatches left theirs.
#include <ATen/ops/addmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <algorithm>
#include <array>

#include "penstock/runtime/nn/host_products.h"
#include "tests/stage/split_cases.h"
#include "tests/support/operator_names.h"

namespace penstock::stage {

using testing_support::OperatorNames;

namespace {

constexpr std::int64_t kRows = 32, kWidth = 512;  // Products that are just worth it.

at::Tensor weight(at::IntArrayRef sizes) { return at::randn(sizes).requires_grad_(true); }
at::Tensor rows() { return at::randn({kRows, kWidth}).requires_grad_(true); }

Computation two_linears(bool has_bias) {
  Computation all{.weights = {weight({kWidth, kWidth}), weight({kWidth, kWidth})},
                  .inputs = {rows()},
                  .forward = [](const Tensors& x, const Tensors& w) -> Tensors {
                    if (w.size() == 2) {
                      return {at::linear(at::relu(at::linear(x[0], w[0])), w[1])};
                    }
                    return {at::linear(at::relu(at::linear(x[0], w[0], w[2])), w[1], w[3])};
                  }};
  if (has_bias) {
    all.weights.push_back(weight({kWidth}));
    all.weights.push_back(weight({kWidth}));
  }
  return all;
}

bool adds_whole() {
  return nn::torch_adds_whole(at::empty({kRows, kWidth}).t(), at::empty({kRows, kWidth}));
}

// Products that were added in place, of three microbatches.
std::int64_t added(const Computation& computation, bool is_split) {
  Microbatches run(computation, 3);
  const OperatorNames names;
  if (is_split) {
    run.run_split();
  } else {
    run.run_ours();
  }
  return OperatorNames::take("aten::addmm_");
}

TEST(AddedProducts, AreThoseOfAllMicrobatchesButTheFirst) {
  if (!adds_whole()) GTEST_SKIP() << "this torch adds products by parts";
  for (const bool has_bias : {false, true}) {
    for (const bool is_split : {false, true}) {
      EXPECT_EQ(added(two_linears(has_bias), is_split), 4) << has_bias << is_split;
    }
    expect_split_equals_whole(two_linears(has_bias));
  }
}

TEST(AddedProducts, HaveTheBitsOfTorchsEngineInAllSizes) {
  for (const auto& [count, in, out] : {std::array<std::int64_t, 3>{1, 3000, 2900},
                                       {7, 1300, 1100},
                                       {31, 700, 513},
                                       {33, 257, 1031},
                                       {64, 520, 300},
                                       {100, 300, 333},
                                       {192, 300, 301},
                                       {200, 300, 301},
                                       {384, 200, 210},
                                       {500, 140, 150},
                                       {700, 140, 150}}) {
    expect_split_equals_whole({.weights = {weight({out, in}), weight({out})},
                               .inputs = {at::randn({count, in}).requires_grad_(true)},
                               .forward = [](const Tensors& x, const Tensors& w) -> Tensors {
                                 return {at::linear(x[0], w[0], w[1])};
                               }});
  }
}

TEST(AddedProducts, AreNotTakenForWhatMeetsOrScalesOrSees) {
  const Computation shared{.weights = {weight({kWidth, kWidth})},
                           .inputs = {rows()},
                           .forward = [](const Tensors& x, const Tensors& w) -> Tensors {
                             return {at::linear(at::linear(x[0], w[0]), w[0])};
                           }};
  const Computation transposed_once{.weights = {weight({kWidth, kWidth})},
                                    .inputs = {rows()},
                                    .forward = [](const Tensors& x, const Tensors& w) -> Tensors {
                                      const at::Tensor t = w[0].t();
                                      return {at::mm(at::mm(x[0], t), t)};
                                    }};
  const Computation scaled{.weights = {weight({kWidth, kWidth}), weight({kWidth})},
                           .inputs = {rows()},
                           .forward = [](const Tensors& x, const Tensors& w) -> Tensors {
                             return {at::addmm(w[1], x[0], w[0].t(), /*beta=*/1, /*alpha=*/0.5)};
                           }};
  const Computation input_as_weight{
      .weights = {weight({kWidth, kWidth})},
      .inputs = {rows(), at::randn({kWidth, kWidth}).requires_grad_(true)},
      .forward = [](const Tensors& x, const Tensors& w) -> Tensors {
        return {at::linear(at::linear(x[0], x[1]), w[0])};
      }};
  for (const Computation& each : {shared, transposed_once, scaled}) {
    for (const bool is_split : {false, true}) EXPECT_EQ(added(each, is_split), 0);
    expect_split_equals_whole(each);
  }
  expect_split_equals_whole(input_as_weight);
  const Computation seen = two_linears(/*has_bias=*/false);
  for (const at::Tensor& each : seen.weights)
    each.register_hook([](at::Tensor g) { return 2 * g; });
  for (const bool is_split : {false, true}) EXPECT_EQ(added(seen, is_split), 0);
  expect_split_equals_whole(seen);
}

// What torch.autograd.graph.saved_tensors_hooks() gives a node.
class Doubles : public torch::autograd::SavedVariableHooks {
 public:
  void call_pack_hook(const at::Tensor& kept) override { kept_ = kept; }
  at::Tensor call_unpack_hook() override { return 2 * kept_; }

 private:
  at::Tensor kept_;
};

TEST(AddedProducts, AreNotTakenForRowsThatTheUserKeeps) {
  const Computation kept_by_user{
      .weights = {weight({kWidth, kWidth})},
      .inputs = {rows()},
      .forward = [](const Tensors& x, const Tensors& w) -> Tensors {
        const at::Tensor out = at::linear(x[0], w[0]);
        dynamic_cast<torch::autograd::generated::MmBackward0&>(*out.grad_fn())
            .self_.register_hooks(std::make_unique<Doubles>());
        return {out};
      }};
  for (const bool is_split : {false, true}) EXPECT_EQ(added(kept_by_user, is_split), 0);
  expect_split_equals_whole(kept_by_user);
}

TEST(AddedProducts, AnInputsEarlierGradientIsLeftAlone) {
  const at::Tensor x = rows(), input = at::randn({kWidth, kWidth}).requires_grad_(true);
  input.mutable_grad() = at::ones({kWidth, kWidth});
  const Tensors found = backward({at::linear(x, input)}, {at::ones({kRows, kWidth})}, {x, input});
  EXPECT_TRUE(same_bits(input.grad(), at::ones({kWidth, kWidth})));
  EXPECT_TRUE(found[1].defined());
}

TEST(AddedProducts, WhatWaitsForAGradientIsCalledOnceAMicrobatch) {
  class Counts : public torch::autograd::PostAccumulateGradHook {
   public:
    explicit Counts(int& calls) : calls_(calls) {}
    void operator()(const torch::autograd::Variable& /*parameter*/) override { ++calls_; }

   private:
    int& calls_;
  };
  const Computation computation = two_linears(/*has_bias=*/true);
  int calls = 0;
  torch::autograd::impl::post_acc_grad_hooks(computation.weights[0]) =
      std::make_unique<Counts>(calls);
  Microbatches(computation, 3).run_ours();
  EXPECT_EQ(calls, 3);
  Microbatches(computation, 3).run_split();
  EXPECT_EQ(calls, 6);
}

}  // namespace
}  // namespace penstock::stage
