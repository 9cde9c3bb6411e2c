// A computation that brings its own backward, the gradients of weights apart from those of inputs.
//
// For layers that know a better way than autograd's: a fused kernel, say, whose weight gradients
// can be put off.  Under a split backward `of_inputs` runs in the I and `of_weights` in the W;
// under a full one, both.  Knows no stages.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>
#include <vector>

namespace penstock::nn {

using Tensors = std::vector<at::Tensor>;

// Each maps the gradients of the outputs, undefined where nothing depends on one, to a gradient for
// every input, or every weight; undefined where there is none.
struct OwnBackward {
  std::function<Tensors(const Tensors& output_gradients)> of_inputs;
  std::function<Tensors(const Tensors& output_gradients)> of_weights;
  // Both at once, to the same bits; may be left out.
  std::function<std::pair<Tensors, Tensors>(const Tensors& output_gradients)> of_both = {};
};

// Gives `outputs`, which were computed from `inputs` and `weights` without autograd
// (torch::NoGradGuard), this backward, and returns them.  What the functions hold on to lives as
// long as the graph: they hold detached tensors, or the graph would hold itself.
// REQUIRES: no output is one of the inputs or weights, or a view of one.
Tensors with_own_backward(Tensors outputs, const Tensors& inputs, const Tensors& weights,
                          OwnBackward backward);

}  // namespace penstock::nn
