// In a run, logits have three dimensions, and nothing but the loss holds them.  A view that the
// loss had made of them held them as well, so that their gradient never took their memory.
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include "penstock/nn/token_loss.h"

namespace penstock::nn {
namespace {

TEST(Regress, LogitsGradientTookNewMemory) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor leaf = at::rand({2, 3, 7}).to(type).requires_grad_();
    at::Tensor logits = leaf * 2;
    const void* memory = logits.data_ptr();
    const void* of_gradient = nullptr;
    logits.register_hook([&](const at::Tensor& gradient) { of_gradient = gradient.data_ptr(); });
    const at::Tensor loss = mean_token_loss(logits, at::randint(7, {2, 3}, at::kLong));
    logits = at::Tensor();
    loss.backward();
    EXPECT_EQ(of_gradient, memory);
  }
}

}  // namespace
}  // namespace penstock::nn
