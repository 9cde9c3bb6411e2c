#include "penstock/runtime/nn/block_sums.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/exchange/pieces.h"

namespace penstock::nn {
namespace {

// A block of several things: of each the indices [first, first + count).
using BlockOf = std::vector<Interval>;

bool are_even(const BlockOf& block) {
  return std::ranges::all_of(
      block, [](const Interval& each) { return each.count > 0 && each.count % 2 == 0; });
}

BlockOf half(BlockOf block, std::int64_t which) {
  for (Interval& each : block) {
    each.count /= 2;
    each.first += which * each.count;
  }
  return block;
}

// The tree above the blocks of `block`, whose leaves are `leaf` of each.
template <class Leaf>
at::Tensor tree(const BlockOf& block, std::int64_t blocks, const Leaf& leaf) {
  if (blocks <= 1 || !are_even(block)) return leaf(block);
  const at::Tensor left = tree(half(block, 0), blocks / 2, leaf);
  return left + tree(half(block, 1), blocks / 2, leaf);
}

// The same values in memory of their own, which begins where a tensor's does: kernels may choose
// their code by where memory begins, and how far rows are apart.
at::Tensor own_memory(const at::Tensor& x) {
  if (x.is_contiguous() && x.storage_offset() == 0) return x;
  return x.clone(at::MemoryFormat::Contiguous);
}

at::Tensor rows_of(const at::Tensor& x) { return x.dim() == 2 ? x : x.flatten(0, -2); }

at::Tensor like(const at::Tensor& rows, const at::Tensor& x) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = rows.size(-1);
  return rows.view(sizes);
}

// Adds along the first dimension, halves to halves: no kernel chooses an order.
at::Tensor folded(at::Tensor x) {
  while (x.size(0) > 1) {
    const std::int64_t half = x.size(0) / 2;
    at::Tensor sums = x.narrow(0, 0, half) + x.narrow(0, half, half);
    if (x.size(0) % 2 == 1) sums[0] += x[2 * half];
    x = std::move(sums);
  }
  return x[0];
}

std::vector<Linear> detached_all(const std::vector<Linear>& linears) {
  std::vector<Linear> all;
  for (const Linear& each : linears) {
    all.push_back({.weight = each.weight.detach(),
                   .bias = each.bias.defined() ? each.bias.detach() : at::Tensor()});
  }
  return all;
}

}  // namespace

bool can_share_width(std::int64_t ranks, std::int64_t size, std::int64_t unit) {
  return exchange::kBlocks % ranks == 0 && size % (ranks * unit) == 0 &&
         size / ranks % kWidthOfBits == 0;
}

void check_width(const Making& making, const std::string& what, std::int64_t size,
                 std::int64_t unit) {
  const std::int64_t ranks = making.share.of;
  if (!making.blocks || ranks == 1 || can_share_width(ranks, size, unit)) return;
  std::vector<std::int64_t> that_can;
  for (std::int64_t each = 1; each <= exchange::kBlocks; each *= 2) {
    if (each == 1 || can_share_width(each, size, unit)) that_can.push_back(each);
  }
  throw ConfigError(
      penstock::str("mesh.tensor = ", ranks, " with numerics.invariant: ranks cannot share ", size,
                    " ", what, ", each as many",
                    unit > 1 ? penstock::str(" in units of ", unit) : penstock::str(),
                    " and a multiple of ", kWidthOfBits),
      {penstock::str("sizes that work: ", join(that_can, ", "))});
}

at::Tensor sum_in_blocks(const at::Tensor& x, std::int64_t blocks) {
  return tree({{.count = x.size(-1)}}, blocks, [&](const BlockOf& block) {
    return x.narrow(-1, block[0].first, block[0].count).sum(-1);
  });
}

at::Tensor sum_of_rows(const at::Tensor& x) {
  const std::int64_t count = x.size(-2), width = x.size(-1);
  at::Tensor sums = x.dim() > 2 ? folded(x.flatten(0, -3)) : x;
  const std::int64_t halves = count & -count, rows = count / halves;  // `rows` of them are odd.
  sums = folded(sums.reshape({halves, rows, width}).transpose(0, 1));
  while (sums.size(0) > 1) {
    const at::Tensor pairs = sums.reshape({-1, 2, width});
    sums = pairs.select(1, 0) + pairs.select(1, 1);
  }
  return sums[0];
}

at::Tensor gradient_of_shared(const std::vector<Linear>& linears, const Tensors& gradients,
                              std::int64_t blocks) {
  BlockOf all;
  std::vector<std::pair<at::Tensor, at::Tensor>> products;  // Rows of gradients, and weights.
  at::Tensor any;
  for (std::size_t i = 0; i < linears.size(); ++i) {
    if (!gradients[i].defined()) continue;  // Nothing depends on that output.
    any = gradients[i];
    products.emplace_back(rows_of(any), linears[i].weight);
    all.push_back({.count = any.size(-1)});
  }
  const at::Tensor rows = tree(all, blocks, [&](const BlockOf& block) {
    at::Tensor sum;
    for (std::size_t i = 0; i < products.size(); ++i) {
      const auto& [gradient, weight] = products[i];
      const at::Tensor product =
          at::mm(own_memory(gradient.narrow(1, block[i].first, block[i].count)),
                 own_memory(weight.narrow(0, block[i].first, block[i].count)));
      sum = sum.defined() ? sum + product : product;
    }
    return sum;
  });
  return like(rows, any);
}

at::Tensor product_in_blocks(const at::Tensor& x, const at::Tensor& weight, std::int64_t blocks) {
  const at::Tensor rows = rows_of(x);
  const at::Tensor sum = tree({{.count = x.size(-1)}}, blocks, [&](const BlockOf& block) {
    const auto part = [&](const at::Tensor& of) {
      return own_memory(of.narrow(1, block[0].first, block[0].count));
    };
    return at::mm(part(rows), part(weight).t());
  });
  return like(sum, x);
}

at::Tensor gradient_of_summand(const Linear& linear, const at::Tensor& gradient) {
  return like(at::mm(rows_of(gradient), linear.weight), gradient);
}

at::Tensor product_and_bias(const at::Tensor& x, const Linear& linear) {
  at::Tensor product = at::mm(rows_of(x), linear.weight.t());
  if (linear.bias.defined()) product += linear.bias;
  return like(product, x);
}

void add_gradients_of(Tensors& gradients, const Linear& linear, const at::Tensor& input,
                      const at::Tensor& gradient) {
  gradients.push_back(at::mm(rows_of(gradient).t(), rows_of(input)));
  if (linear.bias.defined()) gradients.push_back(folded(rows_of(gradient)));
}

Tensors linears_in_blocks(const at::Tensor& x, const std::vector<Linear>& linears,
                          std::int64_t blocks) {
  const at::Tensor kept = x.detach();
  const std::vector<Linear> held = detached_all(linears);
  Tensors outputs, weights;
  {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < held.size(); ++i) {
      outputs.push_back(product_and_bias(kept, held[i]));
      weights.push_back(linears[i].weight);
      if (held[i].bias.defined()) weights.push_back(linears[i].bias);
    }
  }
  const auto of_inputs = [=](const Tensors& gradients) {
    const at::NoGradGuard no_grad;
    return Tensors{gradient_of_shared(held, gradients, blocks)};
  };
  const auto of_weights = [=](const Tensors& gradients) {
    const at::NoGradGuard no_grad;
    Tensors found;
    for (std::size_t i = 0; i < held.size(); ++i) {
      if (gradients[i].defined()) {
        add_gradients_of(found, held[i], kept, gradients[i]);
      } else {
        found.resize(found.size() + (held[i].bias.defined() ? 2 : 1));
      }
    }
    return found;
  };
  return with_own_backward(std::move(outputs), {x}, weights,
                           {.of_inputs = of_inputs, .of_weights = of_weights});
}

at::Tensor summand_in_blocks(const at::Tensor& x, const at::Tensor& weight, std::int64_t blocks) {
  const at::Tensor kept = x.detach();
  const Linear held{.weight = weight.detach(), .bias = {}};
  at::Tensor output;
  {
    const at::NoGradGuard no_grad;
    output = product_in_blocks(kept, held.weight, blocks);
  }
  const auto of_inputs = [=](const Tensors& gradients) {
    const at::NoGradGuard no_grad;
    return Tensors{gradient_of_summand(held, gradients[0])};
  };
  const auto of_weights = [=](const Tensors& gradients) {
    const at::NoGradGuard no_grad;
    Tensors found;
    add_gradients_of(found, held, kept, gradients[0]);
    return found;
  };
  return with_own_backward({output}, {x}, {weight},
                           {.of_inputs = of_inputs, .of_weights = of_weights})
      .front();
}

at::Tensor add_bias_in_blocks(const at::Tensor& x, const at::Tensor& bias) {
  at::Tensor output;
  {
    const at::NoGradGuard no_grad;
    output = x.detach() + bias.detach();
  }
  const auto of_inputs = [](const Tensors& gradients) { return gradients; };
  const auto of_weights = [](const Tensors& gradients) {
    const at::NoGradGuard no_grad;
    return Tensors{sum_of_rows(gradients[0])};
  };
  return with_own_backward({output}, {x}, {bias},
                           {.of_inputs = of_inputs, .of_weights = of_weights})
      .front();
}

}  // namespace penstock::nn
