#include "penstock/runtime/update/master_weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <gtest/gtest.h>

#include "penstock/runtime/update/optimizer.h"
#include "tests/support/same_bits.h"

namespace penstock::update {
namespace {

using testing_support::same_bits;

at::Tensor with_gradient(at::Tensor tensor, const at::Tensor& gradient) {
  tensor.mutable_grad() = gradient;
  return tensor;
}

// Of bf16, 1 - 0.001 is 1.
TEST(MasterWeights, AddUpUpdatesThatParametersWouldRoundAway) {
  const at::Tensor parameter =
      with_gradient(at::full({4}, 1.0, at::kBFloat16), at::full({4}, 1.0, at::kBFloat16));
  MasterWeights masters({parameter});
  Optimizer optimizer({.type = config::OptimizerType::Sgd}, masters.tensors());
  for (int step = 0; step < 20; ++step) {
    masters.take_gradients(masters.all(), {});
    optimizer.step(0.001);
    masters.put_back(masters.all());
    if (step > 0) continue;
    EXPECT_EQ(parameter[0].item<double>(), 1.0);
  }
  EXPECT_TRUE(same_bits(parameter, at::full({4}, 0.98).to(at::kBFloat16)));
  EXPECT_FALSE(masters.tensors()[0].grad().defined());
}

TEST(MasterWeights, GradientsAreDividedAndThenMultiplied) {
  const at::Tensor gradient = at::linspace(-500, 500, 64).to(at::kHalf);
  MasterWeights masters(
      {with_gradient(at::full({64}, 1.0, at::kHalf), gradient), at::full({3}, 1.0, at::kHalf)});
  masters.take_gradients(masters.all(), {.scale = 138.0, .factor = 0.3});
  const at::Tensor expected = gradient.to(at::kFloat).div(138.0).mul(0.3);
  EXPECT_TRUE(same_bits(masters.tensors()[0].grad(), expected));
  EXPECT_FALSE(masters.tensors()[1].grad().defined());
  masters.tensors()[1].fill_(2.0);
  masters.put_back(masters.all());  // It was not updated: it has no gradient.
}

// The others keep what rounding has hidden.
TEST(MasterWeights, TakeElementsThatSomebodyHasSet) {
  const at::Tensor parameter = at::full({2}, 1.0, at::kBFloat16);
  MasterWeights masters({parameter});
  masters.tensors()[0].fill_(1.001);
  masters.take_changes(masters.all());
  parameter[1].fill_(5.0);
  masters.take_changes(masters.all());
  EXPECT_EQ(masters.tensors()[0][0].item<float>(), 1.001F);
  EXPECT_EQ(masters.tensors()[0][1].item<float>(), 5.0F);
}

// Of any types in one model: the update is the same as of all in float, to the rounding of copies.
TEST(MasterWeights, ParametersOfFloatAreTheirOwn) {
  const at::Tensor gradient = at::linspace(-1, 1, 128);
  const at::Tensor whole = with_gradient(at::full({128}, 0.5), gradient.clone());
  const at::Tensor half = with_gradient(at::full({128}, 0.5, at::kHalf), gradient.clone());
  MasterWeights masters({whole, half});
  EXPECT_TRUE(masters.tensors()[0].is_same(whole));
  Optimizer optimizer({.weight_decay = 0.1}, masters.tensors());
  const auto runs = masters.runs(/*elements=*/1);
  for (int step = 0; step < 3; ++step) {
    for (const auto& run : runs) {
      masters.take_gradients(run, {});
      optimizer.step(0.01, run.first, run.end);
      masters.put_back(run);
    }
  }
  EXPECT_TRUE(same_bits(masters.tensors()[1], whole));
  EXPECT_TRUE(same_bits(half, whole.to(at::kHalf)));
}

TEST(MasterWeights, RunsHoldAboutAsManyElementsAsAsked) {
  const auto half = [](std::int64_t size) { return at::empty({size}, at::kHalf); };
  const MasterWeights masters({half(3), half(4), at::empty({100}), half(5), half(9), half(1)});
  std::vector<std::size_t> ends;
  for (const auto& run : masters.runs(8)) ends.push_back(run.end);
  EXPECT_EQ(ends, (std::vector<std::size_t>{3, 4, 5, 6}));
  EXPECT_EQ(MasterWeights({at::empty({100}), at::empty({100})}).runs(8).size(), 1U);
}

}  // namespace
}  // namespace penstock::update
