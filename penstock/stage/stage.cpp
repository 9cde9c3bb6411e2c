#include "penstock/stage/stage.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/stage/backward.h"

namespace penstock::stage {
namespace {

// Inputs of a stage, cut off from where they came from.
struct Cut {
  nn::Values leaves;  // Where gradients arrive; undefined for inputs that take none.
  nn::Values values;  // What the layers get.
};

// The layers do not get the leaves, which must not be changed in place, but tensors of the same
// storage whose gradient goes there.
Cut cut_off(const nn::Values& inputs, bool keep_graph) {
  Cut cut{.leaves = nn::Values(inputs.size()), .values = nn::Values(inputs.size())};
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) continue;
    cut.values[i] = inputs[i].detach();
    if (!keep_graph || !inputs[i].requires_grad()) continue;
    cut.leaves[i] = inputs[i].detach().requires_grad_(true);
    torch::autograd::impl::set_gradient_edge(cut.values[i],
                                             torch::autograd::impl::gradient_edge(cut.leaves[i]));
  }
  return cut;
}

nn::Values detached(const nn::Values& outputs) {
  nn::Values results(outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined()) continue;
    results[i] = outputs[i].detach();
    if (outputs[i].requires_grad()) results[i].requires_grad_(true);
  }
  return results;
}

}  // namespace

Stage::Activation::Activation(nn::Values in, nn::Values out, std::shared_ptr<ActivationCount> count)
    : inputs(std::move(in)), outputs(std::move(out)), count_(std::move(count)) {
  ++count_->alive;
  count_->peak = std::max(count_->peak, count_->alive);
}

Stage::Activation::~Activation() { --count_->alive; }

Stage::Stage(StageId id, const std::vector<nn::LayerSpec>& model, std::int64_t first_layer,
             std::int64_t end_layer, std::int64_t seed, std::shared_ptr<ActivationCount> count)
    : id_(id), first_layer_(first_layer), count_(std::move(count)) {
  for (std::int64_t i = first_layer; i < end_layer; ++i) {
    const nn::LayerSpec& spec = model[static_cast<std::size_t>(i)];
    layer_names_.push_back(spec.meta.name);
    layers_.push_back(nn::build(spec, seed, i));
    std::int64_t tensors = 0;
    for (const auto& parameter : layers_.back()->named_parameters()) {
      if (!parameter.value().requires_grad()) continue;
      parameters_.push_back({spec.meta.name + "." + parameter.key(), parameter.value()});
      ++tensors;
    }
    parameters_per_layer_.push_back(tensors);
  }
}

nn::Values Stage::run_layers(const nn::Values& inputs, bool training) {
  if (training != training_) {
    for (const auto& layer : layers_) layer->train(training);
    training_ = training;
  }
  nn::Values values = inputs;
  for (const auto& layer : layers_) values = layer->forward_values(values);
  return values;
}

void Stage::keep(Microbatch microbatch, nn::Values inputs, nn::Values outputs) {
  if (activations_.size() <= microbatch.index()) activations_.resize(microbatch.index() + 1);
  auto& place = activations_[microbatch.index()];
  PENSTOCK_CHECK(!place, "stage ", id_, " microbatch ", microbatch, " runs forward twice");
  place = std::make_unique<Activation>(std::move(inputs), std::move(outputs), count_);
}

nn::Values Stage::forward(Microbatch microbatch, const nn::Values& inputs, bool keep_graph) {
  const c10::AutoGradMode grad_mode(keep_graph);
  Cut cut = cut_off(inputs, keep_graph);
  nn::Values outputs = run_layers(cut.values, keep_graph);
  nn::Values results = detached(outputs);
  if (keep_graph) keep(microbatch, std::move(cut.leaves), std::move(outputs));
  return results;
}

at::Tensor Stage::forward_loss(Microbatch microbatch, const nn::Values& inputs,
                               const nn::Values& targets, const nn::Loss& loss, bool keep_graph) {
  const c10::AutoGradMode grad_mode(keep_graph);
  Cut cut = cut_off(inputs, keep_graph);
  at::Tensor value = loss(run_layers(cut.values, keep_graph), targets);
  if (value.numel() != 1) {
    throw Error(penstock::str("the loss has shape ", value.sizes(),
                              "; it must be a scalar per microbatch"));
  }
  if (keep_graph && !value.requires_grad()) {
    throw Error("the loss does not require a gradient: nothing that it depends on can be trained");
  }
  // Of its own: torch's losses reduce in place, so theirs keeps the storage of a whole microbatch.
  at::Tensor result = value.detach().clone();
  if (keep_graph) keep(microbatch, std::move(cut.leaves), std::move(value));
  return result;
}

std::unique_ptr<Stage::Activation>& Stage::activation(Microbatch microbatch) {
  PENSTOCK_CHECK(microbatch.index() < activations_.size() && activations_[microbatch.index()],
                 "stage ", id_, " microbatch ", microbatch, " has no activation");
  return activations_[microbatch.index()];
}

nn::Values Stage::backward(Microbatch microbatch, const nn::Values& output_gradients) {
  const std::unique_ptr<Activation> whole = std::move(activation(microbatch));
  return stage::backward(whole->outputs, output_gradients, whole->inputs);
}

nn::Values Stage::backward_input(Microbatch microbatch, const nn::Values& output_gradients) {
  Activation& half = *activation(microbatch);
  SplitBackward split = stage::backward_input(half.outputs, output_gradients, half.inputs);
  half.inputs.clear();
  half.outputs.clear();
  half.weights = std::move(split.weights);
  return std::move(split.input_gradients);
}

void Stage::backward_weight(Microbatch microbatch) {
  const std::unique_ptr<Activation> half = std::move(activation(microbatch));
  PENSTOCK_CHECK(half->weights, "stage ", id_, " microbatch ", microbatch, " has had no I");
  half->weights->run();
}

std::vector<NamedParameter> Stage::state() const {
  std::vector<NamedParameter> state;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const std::string prefix = layer_names_[i] + ".";
    for (const auto& item : layers_[i]->named_parameters()) {
      state.push_back({prefix + item.key(), item.value()});
    }
    for (const auto& item : layers_[i]->named_buffers()) {
      state.push_back({prefix + item.key(), item.value()});
    }
  }
  return state;
}

void Stage::drop_gradients() {
  for (NamedParameter& parameter : parameters_) parameter.tensor.mutable_grad().reset();
}

void Stage::drop_activations() { activations_.clear(); }

}  // namespace penstock::stage
