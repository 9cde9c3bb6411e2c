#include "penstock/runtime/stage/segment.h"

#include <ATen/core/grad_mode.h>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/stage/cut.h"

namespace penstock::stage {
namespace {

std::vector<bool> wants_gradient(const nn::Values& values) {
  std::vector<bool> wants;
  for (const at::Tensor& value : values) wants.push_back(value.defined() && value.requires_grad());
  return wants;
}

nn::Values copies(const nn::Values& values) {
  const at::NoGradGuard no_grad;
  nn::Values results(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!values[i].defined()) continue;
    results[i] = values[i].clone().requires_grad_(values[i].requires_grad());
  }
  return results;
}

std::vector<std::int64_t> versions(const nn::Values& values) {
  std::vector<std::int64_t> versions;
  for (const at::Tensor& value : values) versions.push_back(value.defined() ? value._version() : 0);
  return versions;
}

// Puts the state back, also where a layer throws.
class PutBack {
 public:
  explicit PutBack(StateBefore& before) : before_(before) {}
  ~PutBack() { before_.put_back(); }
  PutBack(const PutBack&) = delete;
  PutBack& operator=(const PutBack&) = delete;

 private:
  StateBefore& before_;
};

}  // namespace

Segment::Segment(LayerRun layers, Activations activations)
    : layers_(std::move(layers)), activations_(activations) {
  for (const auto& layer : layers_.layers()) {
    for (const at::Tensor& buffer : layer->buffers()) buffers_.push_back(buffer);
  }
}

nn::Values Segment::forward(const nn::Values& inputs, nn::DrawPlace place, Kept& kept) {
  place.layer = layers_.first();
  kept.place = place;
  if (is_recomputed()) return forward_without_graph(inputs, kept);
  Cut cut = cut_off(inputs);
  kept.leaves = std::move(cut.leaves);
  kept.outputs = layers_(cut.values, place, {.marks = &kept.marks});
  return kept.outputs;
}

nn::Values Segment::evaluate(const nn::Values& inputs, const nn::DrawPlace& place) const {
  StateBefore before(buffers_);
  const PutBack put_back(before);
  nn::Values outputs =
      layers_(without_gradient(inputs), place, {.generators = &before.generators()});
  for (at::Tensor& output : outputs) {
    if (output.defined() && before.has(output)) output = output.clone();
  }
  return outputs;
}

// Whether an output requires a gradient is seen once, with a graph that is thrown away.
nn::Values Segment::forward_without_graph(const nn::Values& inputs, Kept& kept) {
  const bool learns = !learned_ || learned_->of_inputs != wants_gradient(inputs);
  kept.before = StateBefore(buffers_);
  kept.inputs = learns || learned_->changes_inputs ? copies(inputs) : detached(inputs);
  const std::vector<std::int64_t> before = versions(inputs);
  nn::Values outputs;
  {
    const c10::AutoGradMode grad_mode(learns);
    outputs = layers_(learns ? cut_off(inputs).values : without_gradient(inputs), kept.place,
                      {.generators = &kept.before.generators()});
  }
  const bool changed = versions(inputs) != before;
  if (learns) learned_ = {wants_gradient(inputs), wants_gradient(outputs), changed};
  if (outputs.size() != learned_->of_outputs.size() || (changed && !learned_->changes_inputs)) {
    throw Error("layers whose activations are recomputed behave otherwise than the first time",
                {str("they return ", outputs.size(), " tensors, and returned ",
                     learned_->of_outputs.size()),
                 str("they ", changed ? "change" : "do not change", " their inputs in place, and ",
                     learned_->changes_inputs ? "did" : "did not")});
  }
  nn::Values results = without_gradient(outputs);
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (learned_->of_outputs[i]) results[i].requires_grad_(true);
  }
  return results;
}

void Segment::recompute(Kept& kept) const {
  if (!is_recomputed()) return;
  const c10::AutoGradMode grad_mode(true);
  kept.before.exchange();
  {
    const PutBack put_back(kept.before);
    Cut cut = cut_off(kept.inputs);
    kept.outputs = layers_(cut.values, kept.place, {.marks = &kept.marks});
    kept.leaves = std::move(cut.leaves);
  }
  kept.inputs.clear();
  kept.before = {};
}

}  // namespace penstock::stage
