#include "penstock/runtime/nn/selective.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "penstock/runtime/nn/gated.h"
#include "penstock/runtime/nn/passes/passes.h"
#include "penstock/runtime/nn/rms_norm.h"

namespace penstock::nn {
namespace {

// Copies that autograd does not see.
Linear detached(const Linear& linear) {
  return {.weight = linear.weight.detach(),
          .bias = linear.bias.defined() ? linear.bias.detach() : at::Tensor()};
}

at::Tensor applied(const Linear& linear, const at::Tensor& x) {
  return at::linear(x, linear.weight,
                    linear.bias.defined() ? std::optional(linear.bias) : std::nullopt);
}

at::Tensor rows(const at::Tensor& x) { return x.flatten(0, -2); }

at::Tensor gradient_of_input(const Linear& linear, const at::Tensor& gradient) {
  std::vector<std::int64_t> sizes = gradient.sizes().vec();
  sizes.back() = linear.weight.size(1);
  return at::mm(rows(gradient), linear.weight).view(sizes);
}

// Appends the gradients of its weight, and of its bias where it has one.
void add_gradients(Tensors& gradients, const Linear& linear, const at::Tensor& input,
                   const at::Tensor& gradient) {
  gradients.push_back(at::mm(rows(gradient).t(), rows(input)));
  if (linear.bias.defined()) gradients.push_back(rows(gradient).sum(0));
}

void add_weights(Tensors& weights, const Linear& linear) {
  weights.push_back(linear.weight);
  if (linear.bias.defined()) weights.push_back(linear.bias);
}

// The backward of linears behind a norm.  What comes into the norm goes from the gradients of
// inputs to those of weights, which need it too.
class LinearsOfNorm {
 public:
  LinearsOfNorm(RmsNorm norm, std::vector<Linear> linears, std::optional<std::int64_t> blocks,
                bool gives_sum)
      : norm_(std::move(norm)),
        linears_(std::move(linears)),
        blocks_(blocks),
        gives_sum_(gives_sum) {}

  Tensors outputs() {
    Tensors all;
    if (gives_sum_) all.push_back(norm_.input().variable_data());
    for (const Linear& linear : linears_) {
      all.push_back(blocks_ ? product_and_bias(norm_.output(), linear)
                            : applied(linear, norm_.output()));
    }
    norm_.forget_output();
    return all;
  }

  at::Tensor of_input(const Tensors& gradients) {
    sum_into_norm(gradients);
    return norm_.gradients(of_norm_, of_sum(gradients), RmsNorm::Wanted::OfInput).of_input;
  }

  Tensors of_weights(const Tensors& gradients) {
    if (!of_norm_.defined()) sum_into_norm(gradients);
    Tensors found = {norm_.gradients(of_norm_, {}, RmsNorm::Wanted::OfWeight).of_weight};
    add_linears(found, gradients);
    return found;
  }

  std::pair<at::Tensor, Tensors> of_both(const Tensors& gradients) {
    sum_into_norm(gradients);
    RmsNorm::Gradients of = norm_.gradients(of_norm_, of_sum(gradients), RmsNorm::Wanted::Both);
    Tensors found = {std::move(of.of_weight)};
    add_linears(found, gradients);
    return {std::move(of.of_input), std::move(found)};
  }

 private:
  const at::Tensor& of_sum(const Tensors& gradients) const {
    static const at::Tensor none;
    return gives_sum_ ? gradients.front() : none;
  }
  // Undefined, where nothing depends on that output.
  const at::Tensor& of_linear(const Tensors& gradients, std::size_t i) const {
    return gradients[gives_sum_ ? i + 1 : i];
  }

  void sum_into_norm(const Tensors& gradients) {
    of_norm_.reset();
    const auto first = gradients.begin() + (gives_sum_ ? 1 : 0);
    const auto is_there = [](const at::Tensor& each) { return each.defined(); };
    if (blocks_ && std::any_of(first, gradients.end(), is_there)) {
      of_norm_ = gradient_of_shared(linears_, {first, gradients.end()}, *blocks_);
    }
    if (blocks_) return;
    for (std::size_t i = 0; i < linears_.size(); ++i) {
      const at::Tensor& gradient = of_linear(gradients, i);
      if (!gradient.defined()) continue;
      const at::Tensor part = gradient_of_input(linears_[i], gradient);
      of_norm_ = of_norm_.defined() ? of_norm_.add_(part) : part;
    }
  }

  void add_linears(Tensors& found, const Tensors& gradients) {
    of_norm_.reset();
    const at::Tensor input = norm_.output_again();
    for (std::size_t i = 0; i < linears_.size(); ++i) {
      const at::Tensor& gradient = of_linear(gradients, i);
      if (gradient.defined() && blocks_) {
        add_gradients_of(found, linears_[i], input, gradient);
      } else if (gradient.defined()) {
        add_gradients(found, linears_[i], input, gradient);
      } else {
        found.resize(found.size() + (linears_[i].bias.defined() ? 2 : 1));
      }
    }
  }

  RmsNorm norm_;
  std::vector<Linear> linears_;
  std::optional<std::int64_t> blocks_;
  bool gives_sum_;
  at::Tensor of_norm_;
};

exchange::Sums sums_of_norm(const std::optional<std::int64_t>& blocks) {
  return blocks ? exchange::Sums::InBlocks : exchange::Sums::AsTheyCome;
}

// `inputs`: x, or x and what is added to it.
Tensors linears_behind(RmsNorm norm, const Tensors& inputs, const at::Tensor& norm_weight,
                       const std::vector<Linear>& linears, std::optional<std::int64_t> blocks) {
  std::vector<Linear> held;
  Tensors outputs, weights = {norm_weight};
  for (const Linear& linear : linears) {
    held.push_back(detached(linear));
    add_weights(weights, linear);
  }
  const std::size_t count = inputs.size();
  const auto backward =
      std::make_shared<LinearsOfNorm>(std::move(norm), std::move(held), blocks, count > 1);
  {
    const at::NoGradGuard no_grad;
    outputs = backward->outputs();
  }
  return with_own_backward(std::move(outputs), inputs, weights,
                           {.of_inputs =
                                [backward, count](const Tensors& gradients) {
                                  const at::NoGradGuard no_grad;
                                  return Tensors(count, backward->of_input(gradients));
                                },
                            .of_weights =
                                [backward](const Tensors& gradients) {
                                  const at::NoGradGuard no_grad;
                                  return backward->of_weights(gradients);
                                },
                            .of_both =
                                [backward, count](const Tensors& gradients) {
                                  const at::NoGradGuard no_grad;
                                  auto [of_input, of_weights] = backward->of_both(gradients);
                                  return std::pair(Tensors(count, of_input), std::move(of_weights));
                                }});
}

}  // namespace

Tensors linears_of_norm(const at::Tensor& x, const at::Tensor& norm_weight, double epsilon,
                        const std::vector<Linear>& linears, std::optional<std::int64_t> blocks) {
  RmsNorm norm(x, norm_weight, epsilon, sums_of_norm(blocks));
  return linears_behind(std::move(norm), {x}, norm_weight, linears, blocks);
}

Tensors linears_of_norm_of_sum(const at::Tensor& x, at::Tensor added, const at::Tensor& norm_weight,
                               double epsilon, const std::vector<Linear>& linears,
                               std::optional<std::int64_t> blocks) {
  RmsNorm norm(x, added, passes::nobody_else_reads(added), norm_weight, epsilon,
               sums_of_norm(blocks));
  return linears_behind(std::move(norm), {x, std::move(added)}, norm_weight, linears, blocks);
}

at::Tensor linear_of_gated(const at::Tensor& gate, const at::Tensor& up, const Linear& linear,
                           std::optional<std::int64_t> blocks) {
  const at::Tensor kept_gate = gate.detach(), kept_up = up.detach();
  const Linear held = detached(linear);
  at::Tensor output;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor x = gated_values(kept_gate, kept_up);
    output = blocks ? product_in_blocks(x, held.weight, *blocks) : applied(held, x);
  }
  const auto of_inputs = [=](const Tensors& gradients) {
    const at::NoGradGuard no_grad;
    auto [of_gate, of_up] =
        gradients_of_gated(gradient_of_input(held, gradients[0]), kept_gate, kept_up);
    return Tensors{std::move(of_gate), std::move(of_up)};
  };
  const auto of_weights = [=](const Tensors& gradients) {
    const at::NoGradGuard no_grad;
    Tensors found;
    add_gradients(found, held, gated_values(kept_gate, kept_up), gradients[0]);
    return found;
  };
  Tensors weights;
  add_weights(weights, linear);
  return with_own_backward({output}, {gate, up}, weights,
                           {.of_inputs = of_inputs, .of_weights = of_weights})
      .front();
}

}  // namespace penstock::nn
