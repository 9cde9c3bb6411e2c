#include "penstock/runtime/nn/own_backward.h"

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/nn/own_backward_node.h"
#include "penstock/runtime/nn/torch_versions.h"

namespace penstock::nn {
namespace {

void append(Tensors& gradients, Tensors&& part, std::size_t expected, const char* of) {
  if (part.size() != expected) {
    throw Error(penstock::str("an own backward returned ", part.size(), " gradients of ", of,
                              ", for ", expected));
  }
  for (at::Tensor& gradient : part) gradients.push_back(std::move(gradient));
}

}  // namespace

Tensors OwnBackwardNode::apply(Tensors&& output_gradients) {
  const std::size_t weights = num_outputs() - inputs_;
  Tensors gradients;
  gradients.reserve(num_outputs());
  const bool of_inputs = task_should_compute_output({{0, inputs_}});
  const bool of_weights = task_should_compute_output({{inputs_, num_outputs()}});
  std::pair<Tensors, Tensors> found = {Tensors(inputs_), Tensors(weights)};
  if (of_inputs && of_weights && backward_.of_both) {
    found = backward_.of_both(output_gradients);
  } else {
    if (of_inputs) found.first = backward_.of_inputs(output_gradients);
    if (of_weights) found.second = backward_.of_weights(output_gradients);
  }
  append(gradients, std::move(found.first), inputs_, "inputs");
  append(gradients, std::move(found.second), weights, "weights");
  return gradients;
}

Tensors with_own_backward(Tensors outputs, const Tensors& inputs, const Tensors& weights,
                          OwnBackward backward) {
  if (!at::GradMode::is_enabled() || !(torch::autograd::any_variable_requires_grad(inputs) ||
                                       torch::autograd::any_variable_requires_grad(weights))) {
    return outputs;
  }
  const NodePointer node = make_node<OwnBackwardNode>(
      std::move(backward), inputs.size(), torch::autograd::collect_next_edges(inputs, weights));
  for (at::Tensor& output : outputs) torch::autograd::create_gradient_edge(output, node);
  return outputs;
}

}  // namespace penstock::nn
