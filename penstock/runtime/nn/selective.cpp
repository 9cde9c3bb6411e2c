#include "penstock/runtime/nn/selective.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "penstock/runtime/nn/gated.h"
#include "penstock/runtime/nn/passes/passes.h"
#include "penstock/runtime/nn/products.h"
#include "penstock/runtime/nn/rms_norm.h"

namespace penstock::nn {
namespace {

// The backward of linears behind a norm.  What comes into the norm goes from the gradients of
// inputs to those of weights, which need it too.
class LinearsOfNorm {
 public:
  LinearsOfNorm(RmsNorm norm, std::vector<Linear> linears, std::optional<std::int64_t> blocks,
                bool gives_sum)
      : norm_(std::move(norm)),
        linears_(std::move(linears)),
        blocks_(blocks),
        gives_sum_(gives_sum) {
    for (const Linear& each : linears_) held_.push_back(detached(each));
  }

  Tensors outputs() {
    Tensors all;
    if (gives_sum_) all.push_back(norm_.input().variable_data());
    for (const Linear& linear : held_) {
      all.push_back(blocks_ ? product_and_bias(norm_.output(), linear)
                            : output_of(norm_.output(), linear));
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
    const Tensors of_linears(gradients.begin() + (gives_sum_ ? 1 : 0), gradients.end());
    const auto is_there = [](const at::Tensor& each) { return each.defined(); };
    if (std::ranges::none_of(of_linears, is_there)) return;
    of_norm_ = blocks_ ? gradient_of_shared(held_, of_linears, *blocks_)
                       : gradient_of_input(held_, of_linears);
  }

  void add_linears(Tensors& found, const Tensors& gradients) {
    of_norm_.reset();
    const at::Tensor input = norm_.output_again();
    for (std::size_t i = 0; i < linears_.size(); ++i) {
      const at::Tensor& gradient = of_linear(gradients, i);
      if (!blocks_) {
        append_gradients(found, linears_[i], input, gradient);
      } else if (gradient.defined()) {
        add_gradients_of(found, held_[i], input, gradient);
      } else {
        found.resize(found.size() + (linears_[i].bias.defined() ? 2 : 1));
      }
    }
  }

  RmsNorm norm_;
  std::vector<Linear> linears_;  // The parameters themselves.
  std::vector<Linear> held_;
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
  Tensors outputs, weights = {norm_weight};
  for (const Linear& linear : linears) append_parameters(weights, linear);
  const std::size_t count = inputs.size();
  const auto backward =
      std::make_shared<LinearsOfNorm>(std::move(norm), linears, blocks, count > 1);
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
    output = blocks ? product_in_blocks(x, held.weight, *blocks) : output_of(x, held);
  }
  const auto of_inputs = [=](const Tensors& gradients) {
    const at::NoGradGuard no_grad;
    const at::Tensor of_product =
        blocks ? gradient_of_summand(held, gradients[0]) : gradient_of_input({held}, gradients);
    auto [of_gate, of_up] = gradients_of_gated(of_product, kept_gate, kept_up);
    return Tensors{std::move(of_gate), std::move(of_up)};
  };
  const auto of_weights = [=](const Tensors& gradients) {
    const at::NoGradGuard no_grad;
    Tensors found;
    const at::Tensor input = gated_values(kept_gate, kept_up);
    blocks ? add_gradients_of(found, held, input, gradients[0])
           : append_gradients(found, linear, input, gradients[0]);
    return found;
  };
  Tensors weights;
  append_parameters(weights, linear);
  return with_own_backward({output}, {gate, up}, weights,
                           {.of_inputs = of_inputs, .of_weights = of_weights})
      .front();
}

}  // namespace penstock::nn
