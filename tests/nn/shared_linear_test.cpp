// Linears that ranks may share, where nobody does: the bits of torch's modules.
#include <ATen/Context.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "penstock/nn/shared.h"
#include "tests/support/same_bits.h"

namespace penstock::nn {
namespace {

using testing_support::same_bits;

template <class Linear>
void expect_bits_of_torchs(bool has_bias, at::IntArrayRef shape) {
  at::manual_seed(3);
  const Linear ours(Making{}, {.in = 24, .out = 18, .bias = has_bias});
  at::manual_seed(3);
  torch::nn::Linear torchs(torch::nn::LinearOptions(24, 18).bias(has_bias));
  ASSERT_EQ(ours.parameters().size(), torchs->parameters().size());
  for (std::size_t i = 0; i < ours.parameters().size(); ++i) {
    EXPECT_TRUE(same_bits(ours.parameters()[i], torchs->parameters()[i])) << i;
  }
  const at::Tensor x = at::randn(shape);
  const at::Tensor y = ours.forward(x), expected = torchs->forward(x);
  EXPECT_TRUE(same_bits(y, expected));
  y.sum().backward();
  expected.sum().backward();
  EXPECT_TRUE(same_bits(ours.parameters()[0].grad(), torchs->parameters()[0].grad()));
}

// A fused sum of the bias has others.
TEST(SharedLinear, HasTheBitsOfTorchsWhereNobodySharesIt) {
  for (const bool has_bias : {true, false}) {
    for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{5, 24}, {3, 7, 24}}) {
      expect_bits_of_torchs<ColumnLinear>(has_bias, shape);
      expect_bits_of_torchs<RowLinear>(has_bias, shape);
    }
  }
}

}  // namespace
}  // namespace penstock::nn
