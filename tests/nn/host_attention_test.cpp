// Attention by blocks of queries, beside torch's in double over masks.
#include "penstock/runtime/nn/host_attention.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "penstock/core/text.h"
#include "tests/support/operator_names.h"
#include "tests/support/same_bits.h"

namespace penstock::nn {
namespace {

using testing_support::OperatorNames;
using testing_support::same_bits;
using Tensors = std::vector<at::Tensor>;

struct Sizes {
  std::int64_t samples = 1, heads = 1, kv_heads = 1, tokens = 1, width = 8;
};

// Whether this torch has products of its own library.
bool has_products() {
  const at::Tensor x = at::zeros({1, 1, 128, 8});
  return has_host_attention(x, x, x);
}

// As projections and rotary positions give them: heads of a token are behind each other.
at::Tensor drawn(const Sizes& sizes, std::int64_t heads) {
  return at::randn({sizes.samples, sizes.tokens, heads, sizes.width}).transpose(1, 2);
}

struct Inputs {
  explicit Inputs(const Sizes& sizes)
      : queries(drawn(sizes, sizes.heads)),
        keys(drawn(sizes, sizes.kv_heads)),
        values(drawn(sizes, sizes.kv_heads)),
        seed(at::randn({sizes.samples, sizes.tokens, sizes.heads * sizes.width})) {}
  at::Tensor queries, keys, values, seed;
};

// The output, and the gradients of queries, keys and values.
template <class Attention>
Tensors results_of(const Tensors& inputs, const at::Tensor& seed, const Attention& attention) {
  Tensors leaves;
  for (const at::Tensor& each : inputs) leaves.push_back(each.detach().requires_grad_());
  Tensors results = {attention(leaves[0], leaves[1], leaves[2])};
  torch::autograd::backward(results, {seed});
  for (const at::Tensor& each : leaves) results.push_back(each.grad());
  return results;
}

Tensors ours(const Inputs& inputs, const HostAttention& options) {
  return results_of({inputs.queries, inputs.keys, inputs.values}, inputs.seed,
                    [&](const auto& q, const auto& k, const auto& v) {
                      return host_attention(q, k, v, options);
                    });
}

Tensors expected(const Inputs& inputs, const HostAttention& options) {
  const std::int64_t tokens = inputs.queries.size(2);
  const at::Tensor places = at::arange(tokens);
  const at::Tensor distances = places.unsqueeze(1) - places;
  at::Tensor sees = (distances >= 0).logical_and(distances < options.window.value_or(tokens));
  if (options.starts) {
    sees = sees.logical_and(places >= options.starts->unsqueeze(2)).unsqueeze(1);
  }
  const auto in_double = [](const at::Tensor& each) { return each.to(at::kDouble); };
  return results_of(
      {in_double(inputs.queries), in_double(inputs.keys), in_double(inputs.values)},
      in_double(inputs.seed), [&](const auto& q, const auto& k, const auto& v) {
        const auto repeated = [&](const at::Tensor& x) {
          return x.repeat_interleave(q.size(1) / x.size(1), 1);
        };
        const at::Tensor all = at::scaled_dot_product_attention(q, repeated(k), repeated(v), sees,
                                                                0.0, false, options.scale);
        return all.transpose(1, 2).reshape({q.size(0), tokens, q.size(1) * q.size(3)});
      });
}

void expect_near(const Tensors& found, const Tensors& wanted, const std::string& words) {
  const std::vector<std::string> names = {"output", "queries", "keys", "values"};
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double off = (found[i] - wanted[i]).abs().max().item<double>();
    EXPECT_LE(off, 3e-6 * (1 + wanted[i].abs().max().item<double>())) << names[i] << ", " << words;
  }
}

TEST(HostAttention, IsTorchsWithItsGradientsInEverySize) {
  for (const Sizes& sizes : {Sizes{.tokens = 1}, Sizes{.heads = 2, .tokens = 5},
                             Sizes{.samples = 3, .heads = 4, .kv_heads = 2, .tokens = 64},
                             Sizes{.heads = 6, .kv_heads = 2, .tokens = 65, .width = 20},
                             Sizes{.samples = 2, .heads = 3, .tokens = 200, .width = 64}}) {
    const Inputs inputs(sizes);
    if (!has_products()) GTEST_SKIP();
    const HostAttention options{.scale = 0.3};
    expect_near(ours(inputs, options), expected(inputs, options),
                str(sizes.tokens, " tokens of ", sizes.heads, " heads"));
  }
}

TEST(HostAttention, WindowsAndDocumentsAreSeenWithoutAMask) {
  const Inputs inputs({.samples = 2, .heads = 4, .kv_heads = 2, .tokens = 150});
  if (!has_products()) GTEST_SKIP();
  const at::Tensor places = at::arange(150);
  const at::Tensor starts = at::stack({places.div(40, "floor") * 40, at::zeros_like(places)});
  for (const std::optional<std::int64_t> window :
       {std::optional<std::int64_t>(), std::optional<std::int64_t>(1),
        std::optional<std::int64_t>(7), std::optional<std::int64_t>(100)}) {
    HostAttention options{.scale = 0.5, .window = window};
    expect_near(ours(inputs, options), expected(inputs, options), "a window");
    options.starts = starts;
    expect_near(ours(inputs, options), expected(inputs, options), "documents");
  }
}

TEST(HostAttention, AHeadHasTheSameBitsWhateverHeadsAreWithIt) {
  const Inputs all({.samples = 2, .heads = 6, .kv_heads = 3, .tokens = 130, .width = 16});
  if (!has_products()) GTEST_SKIP();
  const Tensors whole = ours(all, {.scale = 0.25});
  for (std::int64_t head = 0; head < 3; ++head) {
    Inputs one = all;
    one.queries = all.queries.slice(1, 2 * head, 2 * head + 2);
    one.keys = all.keys.slice(1, head, head + 1);
    one.values = all.values.slice(1, head, head + 1);
    one.seed = all.seed.slice(2, 32 * head, 32 * head + 32);
    const Tensors part = ours(one, {.scale = 0.25});
    EXPECT_TRUE(same_bits(part[0], whole[0].slice(2, 32 * head, 32 * head + 32)));
    EXPECT_TRUE(same_bits(part[1], whole[1].slice(1, 2 * head, 2 * head + 2)));
    EXPECT_TRUE(same_bits(part[2], whole[2].slice(1, head, head + 1)));
    EXPECT_TRUE(same_bits(part[3], whole[3].slice(1, head, head + 1)));
  }
}

TEST(HostAttention, ThreadsChangeNoBit) {
  const Inputs inputs({.samples = 2, .heads = 4, .kv_heads = 4, .tokens = 130, .width = 16});
  if (!has_products()) GTEST_SKIP();
  const Tensors alone = ours(inputs, {});
  at::set_num_threads(2);
  const Tensors together = ours(inputs, {});
  at::set_num_threads(1);
  for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(same_bits(together[i], alone[i]));
}

// Its share is 1, whatever its score is.
TEST(HostAttention, TheQueryOfOneTokenHasNoGradient) {
  const Inputs inputs({.samples = 2, .heads = 4, .kv_heads = 2, .tokens = 1, .width = 20});
  if (!has_products()) GTEST_SKIP();
  const Tensors found = ours(inputs, {});
  EXPECT_EQ(found[1].count_nonzero().item<std::int64_t>(), 0);
  EXPECT_EQ(found[2].count_nonzero().item<std::int64_t>(), 0);
}

double off_of(const Tensors& found, const Tensors& wanted) {
  double sum = 0;
  for (std::size_t i = 1; i < found.size(); ++i) {
    sum += ((found[i] - wanted[i]).norm() / wanted[i].norm()).item<double>();
  }
  return sum;
}

// One key has nearly all of a query: what is left of its gradient is a small difference.
TEST(HostAttention, GradientsBehindLargeScoresAreAsNearAsTorchs) {
  if (!has_products()) GTEST_SKIP();
  double of_ours = 0, of_torch = 0;
  for (int i = 0; i < 50; ++i) {
    Inputs inputs({.heads = 4, .kv_heads = 4, .tokens = 10, .width = 4});
    inputs.queries = inputs.queries * 3;
    inputs.keys = inputs.keys * 3;
    const HostAttention options{.scale = 0.5};
    const Tensors wanted = expected(inputs, options);
    of_ours += off_of(ours(inputs, options), wanted);
    of_torch +=
        off_of(results_of({inputs.queries, inputs.keys, inputs.values}, inputs.seed,
                          [](const auto& q, const auto& k, const auto& v) {
                            return at::scaled_dot_product_attention(q, k, v, {}, 0.0, true, 0.5)
                                .transpose(1, 2)
                                .reshape({1, 10, 16});
                          }),
               wanted);
  }
  EXPECT_LE(of_ours, of_torch);
}

TEST(HostAttention, KeepsNoScores) {
  const Inputs inputs({.heads = 2, .kv_heads = 2, .tokens = 70});
  if (!has_products()) GTEST_SKIP();
  const OperatorNames names;
  ours(inputs, {});
  for (const char* const products : {"aten::matmul", "aten::bmm", "aten::_softmax"}) {
    EXPECT_EQ(std::ranges::count(OperatorNames::seen(), products), 0) << products;
  }
  EXPECT_EQ(std::ranges::count(OperatorNames::seen(), "penstock::attention_gradient"), 1);
}

TEST(HostAttention, IsNotForOtherTypesFewTokensOrMoreKeysThanQueries) {
  const at::Tensor x = at::randn({1, 2, 128, 4});
  const at::Tensor doubles = x.to(at::kDouble), more = at::randn({1, 2, 129, 4});
  EXPECT_FALSE(has_host_attention(doubles, doubles, doubles));
  EXPECT_FALSE(has_host_attention(x, more, more));
  const at::Tensor few = x.slice(2, 0, 127);
  EXPECT_FALSE(has_host_attention(few, few, few));
}

}  // namespace
}  // namespace penstock::nn
