#include "penstock/nn/token_loss.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <cmath>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/nn/rms_norm.h"

namespace penstock::nn {
namespace {

struct Result {
  at::Tensor loss;
  at::Tensor gradient;
};

template <class LossFunction>
Result differentiated(const LossFunction& loss_of, const at::Tensor& logits, double factor) {
  const at::Tensor leaf = logits.detach().clone().requires_grad_();
  const at::Tensor loss = loss_of(leaf * 1);  // Logits that nothing else holds.
  torch::autograd::backward({loss}, {at::full({}, factor)});
  return {loss.detach(), leaf.grad()};
}

at::Tensor by_torch(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.flatten(0, 1).to(at::kFloat), targets.flatten());
}

// More rows than one chunk has.
TEST(TokenLoss, IsTorchsCrossEntropyWithItsGradient) {
  for (const auto& [type, bound] : {std::pair(at::kFloat, 1e-6), {at::kBFloat16, 1e-2}}) {
    const at::Tensor logits = (at::rand({3, 400, 900}) * 8).to(type);
    const at::Tensor targets = at::randint(900, {3, 400}, at::kLong);
    targets[0].slice(0, 0, 250).fill_(kIgnoredTarget);
    const Result ours = differentiated(
        [&](const at::Tensor& l) { return mean_token_loss(l, targets); }, logits, 0.25);
    const Result theirs =
        differentiated([&](const at::Tensor& l) { return by_torch(l, targets); }, logits, 0.25);
    EXPECT_NEAR(ours.loss.item<double>(), theirs.loss.item<double>(), 1e-5);
    EXPECT_EQ(ours.gradient.scalar_type(), type);
    const double largest = theirs.gradient.abs().max().item<double>();
    EXPECT_LE((ours.gradient - theirs.gradient).abs().max().item<double>(), bound * largest);
  }
}

TEST(TokenLoss, LogitsThatSomebodyHoldsStayAsTheyAre) {
  const at::Tensor leaf = at::rand({2, 3, 7}).requires_grad_();
  const at::Tensor logits = leaf * 2;
  const at::Tensor before = logits.detach().clone();
  mean_token_loss(logits, at::randint(7, {2, 3}, at::kLong)).backward();
  EXPECT_TRUE(at::equal(logits.detach(), before));
}

TEST(TokenLoss, OfNoTokenIsNotANumberWithoutAGradient) {
  const at::Tensor targets = at::full({2, 3}, kIgnoredTarget, at::kLong);
  const Result result = differentiated(
      [&](const at::Tensor& l) { return mean_token_loss(l, targets); }, at::rand({2, 3, 7}), 1.0);
  EXPECT_TRUE(std::isnan(result.loss.item<double>()));
  EXPECT_TRUE(at::equal(result.gradient, at::zeros_like(result.gradient)));
}

TEST(TokenLoss, RefusesTargetsThatAreNoTokens) {
  const at::Tensor logits = at::rand({1, 3, 7});
  for (const std::int64_t wrong : {7, -1, -101}) {
    const at::Tensor targets = at::zeros({1, 3}, at::kLong);
    targets[0][1] = wrong;
    try {
      mean_token_loss(logits, targets);
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.message(),
                penstock::str("a target is ", wrong, "; the model's vocabulary has 7 tokens"));
    }
  }
  EXPECT_THROW(mean_token_loss(logits, at::zeros({1, 2}, at::kLong)), Error);
}

TEST(RmsNorm, HasTheGradientsOfItsFormula) {
  const at::Tensor x = at::rand({2, 3, 8}) - 0.5, weight = at::rand({8}),
                   factors = at::rand({2, 3, 8});
  std::vector<at::Tensor> gradients;
  for (const bool own : {true, false}) {
    const at::Tensor a = x.clone().requires_grad_(), w = weight.clone().requires_grad_();
    const at::Tensor y =
        own ? rms_norm(a, w, 1e-3) : a * (a.square().mean(-1, true) + 1e-3).rsqrt() * w;
    (y * factors).sum().backward();
    gradients.insert(gradients.end(), {y.detach(), a.grad(), w.grad()});
  }
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(at::allclose(gradients[i], gradients[i + 3], 1e-5, 1e-6)) << i;
  }
}

}  // namespace
}  // namespace penstock::nn
