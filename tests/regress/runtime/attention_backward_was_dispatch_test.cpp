// A ledger counted the backward of torch's attention among views, graph and dispatch, since the
// kernel fills its gradients by an operator first: a sixth of a step was nobody's.
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <set>
#include <string>

#include "penstock/runtime/probe/operator_times.h"

namespace penstock::probe {
namespace {

TEST(Regress, AttentionsBackwardIsAttention) {
  const at::Tensor x = at::randn({1, 2, 64, 16}).requires_grad_();
  OperatorTimes times;
  const at::Tensor output = at::scaled_dot_product_attention(x, x, x, {}, 0.0, /*is_causal=*/true);
  torch::autograd::backward({output}, {at::randn({1, 2, 64, 16})});
  std::set<std::string> names;
  double operations = 0;
  for (const auto& [key, cost] : times.take().costs) {
    if (key.kind != OperatorKind::Attention) continue;
    names.insert(key.name);
    operations += cost.operations;
  }
  const std::string forward = "_scaled_dot_product_flash_attention_for_cpu";
  EXPECT_EQ(names, (std::set<std::string>{forward, forward + "_backward"}));
  EXPECT_EQ(operations, 7.0 * 2 * 64 * 64 * 16);
}

}  // namespace
}  // namespace penstock::probe
