// Fused passes against their plain versions, and against formulas in double.
//
// Products and sums of two numbers are rounded alike in both, so what has no sum over a row has the
// same bits.  A sum of n terms of one sign, added in steps of d additions each, is within d units
// of the last place; of terms of both signs, within d units of the sum of magnitudes (Higham 2002,
// 4.2).  Here d is at most n / 32 + 8.
#include "penstock/runtime/nn/passes/passes.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "penstock/core/ignored_target.h"
#include "penstock/core/text.h"
#include "penstock/nn/token_loss.h"
#include "penstock/runtime/nn/gated.h"
#include "penstock/runtime/nn/rms_norm.h"
#include "penstock/runtime/nn/rotary.h"
#include "penstock/runtime/nn/selective.h"

namespace penstock::nn {
namespace {

using exchange::Sums;
using Function = std::function<Tensors(const Tensors& inputs)>;

constexpr double kUnit = 1.0 / (1 << 24);  // Half of the last place of 1.
constexpr double kEpsilon = 1e-5;
const std::vector<std::int64_t> kWidths = {1, 7, 8, 31, 64, 100, 256, 1000};

double depth(std::int64_t width) { return static_cast<double>(width) / 32 + 8; }

struct Result {
  Tensors outputs;
  Tensors gradients;  // By input.
};

// Floats, in the type of these.
at::Tensor factors_of(const at::Tensor& outputs) {
  const at::Tensor numbers = at::arange(outputs.numel(), at::kDouble);
  return (numbers * 0.7).sin().to(at::kFloat).to(outputs.scalar_type()).view(outputs.sizes());
}

// Outputs, and gradients of the outputs' sum, each element multiplied by a fixed factor.  What the
// function is given nobody else holds.
Result differentiated(const Function& function, const Tensors& inputs) {
  Tensors leaves, given;
  for (const at::Tensor& each : inputs) leaves.push_back(each.detach().clone().requires_grad_());
  for (const at::Tensor& each : leaves) given.push_back(each * 1);
  Result result;
  Tensors outputs = function(given), factors;
  given.clear();
  for (const at::Tensor& each : outputs) {
    factors.push_back(factors_of(each));
    result.outputs.push_back(each.detach().clone());
  }
  torch::autograd::backward(outputs, factors);
  for (const at::Tensor& each : leaves) result.gradients.push_back(each.grad());
  return result;
}

Result plainly(const Function& function, const Tensors& inputs) {
  const passes::Plain plain;
  return differentiated(function, inputs);
}

Tensors all_of(const Result& result) {
  Tensors all = result.outputs;
  all.insert(all.end(), result.gradients.begin(), result.gradients.end());
  return all;
}

void expect_same_bits(const Result& a, const Result& b, const std::string& what) {
  const Tensors ours = all_of(a), theirs = all_of(b);
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(at::equal(ours[i], theirs[i])) << what << ", tensor " << i;
  }
}

// |ours - exact| <= units of the last place of `magnitudes`.
void expect_within(const at::Tensor& ours, const at::Tensor& exact, double units,
                   const at::Tensor& magnitudes, const std::string& what) {
  const at::Tensor excess =
      (ours.to(at::kDouble) - exact).abs() - (magnitudes.abs() + 1e-30) * (units * kUnit);
  EXPECT_LE(excess.max().item<double>(), 0.0) << what;
}

// The formulas of the norm, in any type.
Tensors norm_formula(const Tensors& of) {
  const at::Tensor sum = of[0] + of[1];
  return {sum, sum * (sum.square().mean(-1, true) + kEpsilon).rsqrt() * of[2]};
}

Tensors norm_of_sum(const Tensors& of) { return rms_norm_of_sum(of[0], of[1], of[2], kEpsilon); }

Tensors doubles(const Tensors& of) {
  Tensors all;
  for (const at::Tensor& each : of) all.push_back(each.to(at::kDouble));
  return all;
}

// Gradients of sums of sines are those of autograd, by central differences in double.
void expect_gradients_of_differences(const Function& formula, const Tensors& inputs) {
  const Result exact = differentiated(formula, inputs);
  const auto value_at = [&](std::size_t i, std::int64_t element, double step) {
    const torch::NoGradGuard no_grad;
    Tensors moved = inputs;
    moved[i] = inputs[i].clone();
    moved[i].view(-1)[element] += step;
    double value = 0;
    for (const at::Tensor& each : formula(moved)) {
      value += (factors_of(each) * each).sum().item<double>();
    }
    return value;
  };
  constexpr double kStep = 1e-6;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    for (std::int64_t e = 0; e < inputs[i].numel(); ++e) {
      const double slope = (value_at(i, e, kStep) - value_at(i, e, -kStep)) / (2 * kStep);
      EXPECT_NEAR(exact.gradients[i].view(-1)[e].item<double>(), slope, 1e-7) << i << ", " << e;
    }
  }
}

TEST(Passes, NormOfASumIsItsFormula) {
  for (const std::int64_t width : kWidths) {
    const Tensors inputs = {at::randn({3, 11, width}), at::randn({3, 11, width}),
                            at::rand({width}) + 0.5};
    const Result ours = differentiated(norm_of_sum, inputs);
    const Result exact = differentiated(norm_formula, doubles(inputs));
    const std::string what = "width " + std::to_string(width);
    EXPECT_TRUE(at::equal(ours.outputs[0], inputs[0] + inputs[1])) << what;
    // The sum itself is rounded, and is part of every difference from then on.
    const Tensors rounded = {ours.outputs[0], at::zeros_like(inputs[0]), inputs[2]};
    const Result behind_sum = differentiated(norm_formula, doubles(rounded));
    expect_within(ours.outputs[1], behind_sum.outputs[1], depth(width), behind_sum.outputs[1],
                  what);
    // Of each row the largest: differences of the largest terms.
    const at::Tensor& of_x = behind_sum.gradients[0];
    const at::Tensor largest =
        of_x.abs().amax(-1, true) +
        inputs[2].abs().max().item<double>() *
            (behind_sum.outputs[0].square().mean(-1, true) + kEpsilon).rsqrt();
    expect_within(ours.gradients[0], of_x, 2 * depth(width) + 8, largest, what);
    EXPECT_TRUE(at::equal(ours.gradients[0], ours.gradients[1])) << what;
    const at::Tensor terms = behind_sum.outputs[1].abs().flatten(0, -2).sum(0) / inputs[2];
    expect_within(ours.gradients[2], behind_sum.gradients[2], depth(width) + 40, terms, what);
    ASSERT_EQ(exact.gradients.size(), 3U);
  }
}

TEST(Passes, NormIsThePlainOneWithinItsSums) {
  for (const std::int64_t width : kWidths) {
    const Tensors inputs = {at::randn({37, width}), at::rand({width}) + 0.5};
    const Function norm = [](const Tensors& of) {
      return Tensors{rms_norm(of[0], of[1], kEpsilon)};
    };
    const Result ours = differentiated(norm, inputs), plain = plainly(norm, inputs);
    const std::string what = "width " + std::to_string(width);
    expect_within(ours.outputs[0], plain.outputs[0].to(at::kDouble), 2 * depth(width),
                  plain.outputs[0], what);
  }
}

TEST(Passes, GradientsOfTheFormulasAreDifferences) {
  const auto random = [](at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble); };
  expect_gradients_of_differences(norm_formula, {random({2, 5}), random({2, 5}), random({5})});
  expect_gradients_of_differences(
      [](const Tensors& of) { return Tensors{at::silu(of[0]) * of[1]}; },
      {random({3, 4}), random({3, 4})});
}

// Runs with so many of torch's threads.
Result threaded(int threads, const Function& function, const Tensors& inputs) {
  const int before = at::get_num_threads();
  at::set_num_threads(threads);
  const Result result = differentiated(function, inputs);
  at::set_num_threads(before);
  return result;
}

TEST(Passes, ThreadsShareThemWithTheSameBits) {
  constexpr std::int64_t kRows = 301, kWidth = 1000;  // Nine of the least parts.
  const auto wide = [] { return at::randn({1, kRows, kWidth}); };
  const at::Tensor targets = at::randint(kWidth, {1, kRows}, at::kLong);
  Rotary rotary({}, 50);
  const std::pair<const char*, Function> functions[] = {
      {"norm", norm_of_sum},
      {"gate", [](const Tensors& of) { return Tensors{gated(of[0], of[1])}; }},
      {"loss", [&](const Tensors& of) { return Tensors{mean_token_loss(of[0], targets)}; }},
      {"rotation", [&](const Tensors& of) { return rotary.turn({of[0], of[1]}); }}};
  const Tensors inputs = {wide(), wide(), at::rand({kWidth}) + 0.5};
  for (const auto& [name, function] : functions) {
    const std::string what = name;
    const Tensors some(inputs.begin(), inputs.begin() + (what == "norm"   ? 3
                                                         : what == "loss" ? 1
                                                                          : 2));
    const Result one = threaded(1, function, some);
    for (const int threads : {2, 3, 7}) {
      expect_same_bits(threaded(threads, function, some), one, str(what, " on ", threads));
    }
  }
}

TEST(Passes, PartsAreAllRowsOnceEach) {
  at::set_num_threads(5);
  for (const std::int64_t rows : {0, 1, 4, 5, 6, 97}) {
    std::vector<std::atomic<int>> seen(static_cast<std::size_t>(rows));
    std::atomic<int> parts = 0;
    passes::in_parts(rows, std::int64_t{1} << 20, [&](std::int64_t first, std::int64_t last) {
      ++parts;
      for (std::int64_t i = first; i < last; ++i) ++seen[static_cast<std::size_t>(i)];
    });
    EXPECT_TRUE(std::ranges::all_of(seen, [](const auto& each) { return each == 1; })) << rows;
    EXPECT_EQ(parts, std::clamp<std::int64_t>(rows, 1, 5)) << rows;
  }
  at::set_num_threads(1);
}

// What ranks that share tokens rely on.
TEST(Passes, RowsHaveTheSameBitsAmongOthersAndAlone) {
  const Tensors inputs = {at::randn({40, 100}), at::randn({40, 100}), at::rand({100})};
  const Tensors whole = norm_of_sum(inputs);
  const at::Tensor logits = at::randn({40, 1, 100}), targets = at::randint(100, {40, 1}, at::kLong);
  for (const std::int64_t first : {0, 1, 13, 39}) {
    const auto rows = [&](const at::Tensor& x) { return x.slice(0, first).contiguous(); };
    const Tensors some = norm_of_sum({rows(inputs[0]), rows(inputs[1]), inputs[2]});
    EXPECT_TRUE(at::equal(some[1], rows(whole[1]))) << first;
    EXPECT_TRUE(at::equal(gated_values(rows(inputs[0]), rows(inputs[1])),
                          rows(gated_values(inputs[0], inputs[1]))))
        << first;
  }
}

TEST(Passes, GradientOfANormsWeightHasTheSumsThatLayoutsShare) {
  const Tensors inputs = {at::randn({2, 8, 64}), at::rand({64})};
  const Function norm = [](const Tensors& of) {
    return Tensors{rms_norm(of[0], of[1], kEpsilon, Sums::InBlocks)};
  };
  const Result whole = differentiated(norm, inputs);
  const at::Tensor factors = factors_of(inputs[0]);
  const at::Tensor y = inputs[0] * (inputs[0].square().mean(-1, true) + kEpsilon).rsqrt();
  EXPECT_TRUE(at::allclose(whole.gradients[1], (y * factors).sum({0, 1}), 1e-5, 1e-5));
  // Two ranks with half of the tokens each: the sum of theirs is that of one.
  at::Tensor sum;
  for (const std::int64_t half : {0, 1}) {
    const auto mine = [&](const at::Tensor& x) { return x.narrow(1, 4 * half, 4).contiguous(); };
    const at::Tensor x = mine(inputs[0]).requires_grad_(), w = inputs[1].clone().requires_grad_();
    const at::Tensor output = rms_norm(x, w, kEpsilon, Sums::InBlocks);
    torch::autograd::backward({output}, {mine(factors)});
    sum = sum.defined() ? sum + w.grad() : w.grad();
  }
  EXPECT_TRUE(at::equal(sum, whole.gradients[1]));
}

TEST(Passes, NormHasTheSameGradientsTogetherAndApart) {
  const at::Tensor x = at::randn({50, 100}).requires_grad_(), y = at::randn({50, 100}),
                   w = at::rand({100}).requires_grad_(), factors = at::randn({50, 100});
  const auto outputs = [&] { return rms_norm_of_sum(x, y.clone(), w, kEpsilon); };
  const auto gradients = [&](const Tensors& of) {
    return torch::autograd::grad(outputs(), of, {factors, factors * 2});
  };
  const Tensors together = gradients({x, w});
  EXPECT_TRUE(at::equal(together[0], gradients({x})[0]));
  EXPECT_TRUE(at::equal(together[1], gradients({w})[0]));
}

TEST(Passes, NormOfAnOutputThatNobodyUsesHandsTheSumsGradientOn) {
  const at::Tensor x = at::randn({5, 9}).requires_grad_(), w = at::rand({9}).requires_grad_();
  rms_norm_of_sum(x, at::randn({5, 9}), w, kEpsilon)[0].sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::ones_like(x)));
  EXPECT_FALSE(w.grad().defined());
}

// What follows turns queries and keys of `tokens` of two samples, of 3 heads and of 2.
void expect_rotation_of_plain_bits(const RotaryOptions& options, std::int64_t head_dim,
                                   std::int64_t tokens) {
  Rotary rotary(options, head_dim);
  const at::Tensor positions = at::randint(tokens, {2, tokens}, at::kLong);
  const Tensors inputs = {at::randn({2, tokens, 3 * head_dim}),
                          at::randn({2, tokens, 2, head_dim})};
  const std::string what = str("head_dim ", head_dim, ", share ", options.share, ", ", tokens);
  const Function turn = [&](const Tensors& of) { return rotary.turn(of, 3); };
  expect_same_bits(differentiated(turn, inputs), plainly(turn, inputs), what);
  const Function turn_at = [&](const Tensors& of) { return rotary.turn_at(of, positions); };
  expect_same_bits(differentiated(turn_at, inputs), plainly(turn_at, inputs), what);
  // Queries and keys of one product.
  const Function of_one = [&](const Tensors& of) {
    return rotary.turn(of[0].split_with_sizes({2 * head_dim, head_dim}, -1));
  };
  expect_same_bits(differentiated(of_one, {inputs[0]}), plainly(of_one, {inputs[0]}), what);
}

TEST(Passes, RotationHasThePlainOnesBits) {
  for (const std::int64_t head_dim : {2, 6, 16, 34, 64}) {
    for (const std::int64_t tokens : {1, 9}) expect_rotation_of_plain_bits({}, head_dim, tokens);
  }
}

TEST(Passes, RotationOfAPartOfEachHeadHasThePlainOnesBits) {
  for (const double share : {0.25, 0.5, 0.75}) {
    for (const std::int64_t head_dim : {8, 40, 64}) {
      for (const std::int64_t tokens : {1, 9}) {
        expect_rotation_of_plain_bits({.share = share, .magnitude = 1.25}, head_dim, tokens);
      }
    }
  }
}

// A rank that shares tokens may have none.
TEST(Passes, NoRowsHaveGradientsOfZero) {
  const at::Tensor w = at::rand({9}).requires_grad_();
  const at::Tensor x = at::randn({2, 0, 9}).requires_grad_();
  rms_norm(x, w, kEpsilon).sum().backward();
  EXPECT_TRUE(at::equal(w.grad(), at::zeros_like(w)));
  rms_norm_of_sum(x, at::randn({2, 0, 9}), w, kEpsilon)[1].sum().backward();
  EXPECT_TRUE(at::equal(w.grad(), at::zeros_like(w)));
  Rotary rotary({}, 4);
  EXPECT_EQ(rotary.turn({at::randn({2, 0, 8})})[0].sizes(),
            (std::vector<std::int64_t>{2, 2, 0, 4}));
  EXPECT_EQ(gated(x, x).sizes(), x.sizes());
}

TEST(Passes, RotationIsInPlaceWhereNobodyElseReads) {
  Rotary rotary({}, 8);
  const at::Tensor leaf = at::randn({1, 4, 16}).requires_grad_();
  for (const bool is_held : {false, true}) {
    Tensors all = {leaf * 2};
    const at::Tensor held = is_held ? all[0] : at::Tensor(), before = all[0].detach().clone();
    const void* const memory = all[0].data_ptr();
    const Tensors turned = rotary.turn(std::move(all));
    EXPECT_EQ(turned[0].data_ptr() == memory, !is_held);
    if (is_held) {
      EXPECT_TRUE(at::equal(held.detach(), before));
    }
  }
}

// An exponential is within a unit of the last place, and each step behind it within half a one.
// Torch's operators have two kinds of exponentials, by the place of an element among the others.
TEST(Passes, GateIsItsFormula) {
  const Function gate = [](const Tensors& of) { return Tensors{gated(of[0], of[1])}; };
  const Function formula = [](const Tensors& of) { return Tensors{at::silu(of[0]) * of[1]}; };
  for (const std::int64_t width : kWidths) {
    const Tensors inputs = {at::randn({3, 5, width}) * 8, at::randn({3, 5, width})};
    const Result exact = differentiated(formula, doubles(inputs));
    const at::Tensor x = inputs[0].to(at::kDouble), up = inputs[1].to(at::kDouble);
    const at::Tensor of_gate = up * factors_of(up) * x.sigmoid() * (1 + x.abs());
    const std::string what = "width " + std::to_string(width);
    for (const Result& each : {differentiated(gate, inputs), plainly(gate, inputs)}) {
      expect_within(each.outputs[0], exact.outputs[0], 5, exact.outputs[0], what);
      expect_within(each.gradients[0], exact.gradients[0], 10, of_gate, what);
      expect_within(each.gradients[1], exact.gradients[1], 6, exact.gradients[1], what);
    }
  }
}

TEST(Passes, GateOfOneProductIsThePlainOne) {
  const Function gate = [](const Tensors& of) {
    const Tensors parts = of[0].chunk(2, -1);
    return Tensors{gated(parts[0], parts[1])};
  };
  const Tensors inputs = {at::randn({3, 5, 20})};
  expect_same_bits(differentiated(gate, inputs), plainly(gate, inputs), "chunks");
}

TEST(Passes, GateOfExtremesIsThePlainOne) {
  const float infinite = std::numeric_limits<float>::infinity();
  const at::Tensor gate = at::empty({6}), up = at::full({6}, 2.0F);
  const float values[] = {-200.0F, -88.0F, -0.0F, 88.0F, 200.0F, infinite};
  for (std::int64_t i = 0; i < 6; ++i) gate[i] = values[i];
  const at::Tensor ours = gated_values(gate, up);
  const passes::Plain plain;
  EXPECT_TRUE(at::allclose(ours, gated_values(gate, up), 1e-6));
}

TEST(Passes, SelectiveBlocksHaveTheGradientsOfThoseThatKeepAll) {
  const at::Tensor x = at::randn({2, 6, 32}), added = at::randn({2, 6, 32}),
                   norm = at::rand({32}) + 0.5, weight = at::randn({48, 32}) / 6;
  const Function keeping = [](const Tensors& of) {
    Tensors found = rms_norm_of_sum(of[0], of[1], of[2], kEpsilon);
    return Tensors{found[0], at::linear(found[1], of[3])};
  };
  const Function again = [](const Tensors& of) {
    return linears_of_norm_of_sum(of[0], of[1], of[2], kEpsilon, {{.weight = of[3], .bias = {}}},
                                  {});
  };
  const Tensors inputs = {x, added, norm, weight};
  expect_same_bits(differentiated(keeping, inputs), differentiated(again, inputs), "selective");
}

TEST(Passes, LossIsTorchsInDouble) {
  for (const std::int64_t width : kWidths) {
    const at::Tensor targets = at::randint(width, {3, 20}, at::kLong);
    targets[1].slice(0, 0, 5).fill_(kIgnoredTarget);
    const at::Tensor logits = at::randn({3, 20, width}) * 4;
    const auto gradient_of = [&](const auto& function, const at::Tensor& of) {
      const at::Tensor leaf = of.detach().clone().requires_grad_();
      const at::Tensor value = function(leaf * 1);
      value.backward();
      return std::pair(value.item<double>(), leaf.grad());
    };
    const auto [ours, of_ours] =
        gradient_of([&](const at::Tensor& l) { return mean_token_loss(l, targets); }, logits);
    const auto [exact, of_exact] = gradient_of(
        [&](const at::Tensor& l) {
          return at::cross_entropy_loss(l.flatten(0, 1), targets.flatten());
        },
        logits.to(at::kDouble));
    const std::string what = "width " + std::to_string(width);
    EXPECT_NEAR(ours, exact, 60 * depth(width) * kUnit * (1 + std::abs(exact))) << what;
    // exp(x) has the error of x: up to half a unit of 32, for logits and sums of logarithms below.
    const at::Tensor softmax = logits.to(at::kDouble).softmax(-1) / 55.0;
    const at::Tensor magnitudes = of_exact.abs().maximum(softmax).clamp_min(1e-9);
    expect_within(of_ours, of_exact, 3 * 32 + depth(width), magnitudes, what);
  }
}

TEST(Passes, ShortTypesAreComputedByTorchsOperators) {
  const at::Tensor x = at::randn({4, 16}).to(at::kBFloat16);
  EXPECT_FALSE(passes::can_fuse({x}));
  const at::Tensor floats = x.to(at::kFloat), columns = floats.t();
  EXPECT_TRUE(passes::can_fuse({floats}));
  EXPECT_FALSE(passes::can_fuse({columns}));
  const at::Tensor weight = at::rand({16}).to(at::kBFloat16);
  EXPECT_EQ(rms_norm(x, weight, kEpsilon).scalar_type(), at::kBFloat16);
}

// Processors of other kinds: all that this one can run.
TEST(Passes, EveryKindOfProcessorComputesTheSame) {
  const at::Tensor x = at::randn({10, 100}), w = at::rand({100}), up = at::randn({10, 100});
  const auto normed = [&](const passes::Kernels& kernels) {
    const at::Tensor scales = at::empty({10}), output = at::empty({10, 100});
    kernels.norm({.x = passes::floats(x),
                  .added = nullptr,
                  .weight = passes::floats(w),
                  .sum = nullptr,
                  .scales = passes::floats(scales),
                  .output = passes::floats(output),
                  .rows = 10,
                  .width = 100,
                  .epsilon = 1e-5F,
                  .has_scales = false});
    return output;
  };
  const at::Tensor here = normed(passes::kernels()), by_default = normed(passes::kDefaultKernels);
  expect_within(here, by_default.to(at::kDouble), 2 * depth(100), by_default, "norm");
}

// The name was once read after its end: chosen was what its memory had by then.
TEST(Passes, AreThoseOfTheProcessor) {
  const std::string capability = at::get_cpu_capability();
  const passes::Kernels* expected = &passes::kDefaultKernels;
#if defined(__x86_64__)
  if (capability == "AVX2") expected = &passes::kAvx2Kernels;
  if (capability == "AVX512") expected = &passes::kAvx512Kernels;
#endif
  EXPECT_EQ(&passes::kernels(), expected) << capability;
}

}  // namespace
}  // namespace penstock::nn
