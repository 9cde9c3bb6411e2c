#include "penstock/stage/stage.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/stage/backward.h"

namespace penstock::stage {

Stage::Activation::Activation(at::Tensor in, at::Tensor out, std::shared_ptr<ActivationCount> count)
    : input(std::move(in)), output(std::move(out)), count_(std::move(count)) {
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

at::Tensor Stage::run_layers(const at::Tensor& input, bool training) {
  if (training != training_) {
    for (const auto& layer : layers_) layer->train(training);
    training_ = training;
  }
  at::Tensor value = input;
  for (const auto& layer : layers_) value = layer->forward(value);
  return value;
}

void Stage::keep(Microbatch microbatch, const at::Tensor& input, const at::Tensor& output) {
  if (activations_.size() <= microbatch.index()) activations_.resize(microbatch.index() + 1);
  auto& place = activations_[microbatch.index()];
  PENSTOCK_CHECK(!place, "stage ", id_, " microbatch ", microbatch, " runs forward twice");
  place = std::make_unique<Activation>(input, output, count_);
}

at::Tensor Stage::forward(Microbatch microbatch, const at::Tensor& input, bool keep_graph) {
  const c10::AutoGradMode grad_mode(keep_graph);
  at::Tensor leaf = input.detach();
  if (keep_graph && leaf.is_floating_point() && id_.value > 0) leaf.requires_grad_(true);
  const at::Tensor output = run_layers(leaf, keep_graph);
  if (keep_graph) keep(microbatch, leaf, output);
  return output.detach();
}

at::Tensor Stage::forward_loss(Microbatch microbatch, const at::Tensor& input,
                               const at::Tensor& target, const nn::Loss& loss, bool keep_graph) {
  const c10::AutoGradMode grad_mode(keep_graph);
  at::Tensor leaf = input.detach();
  if (keep_graph && leaf.is_floating_point() && id_.value > 0) leaf.requires_grad_(true);
  const at::Tensor value = loss(run_layers(leaf, keep_graph), target);
  if (value.numel() != 1) {
    throw Error(penstock::str("the loss has shape ", value.sizes(),
                              "; it must be a scalar per microbatch"));
  }
  if (keep_graph) keep(microbatch, leaf, value);
  // Of its own: torch's losses reduce in place, so theirs keeps the storage of a whole microbatch.
  return value.detach().clone();
}

at::Tensor Stage::backward(Microbatch microbatch, const at::Tensor& output_gradient) {
  PENSTOCK_CHECK(microbatch.index() < activations_.size() && activations_[microbatch.index()],
                 "stage ", id_, " microbatch ", microbatch, " has no activation");
  const std::unique_ptr<Activation> activation = std::move(activations_[microbatch.index()]);
  if (!activation->output.requires_grad()) {
    throw Error(str("stage ", id_, ": its ", output_gradient.dim() == 0 ? "loss" : "output",
                    " does not require a gradient: nothing in it can be trained"));
  }
  return stage::backward({activation->output}, {output_gradient}, {activation->input})[0];
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
