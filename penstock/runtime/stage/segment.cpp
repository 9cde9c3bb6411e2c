#include "penstock/runtime/stage/segment.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

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
    : Segment(std::vector{std::move(layers)}, Borders(1), activations) {}

Segment::Segment(std::vector<LayerRun> parts, Borders borders, Activations activations)
    : parts_(std::move(parts)),
      borders_(std::make_shared<const Borders>(std::move(borders))),
      activations_(activations) {
  for (const LayerRun& part : parts_) {
    for (const auto& layer : part.layers()) {
      for (const at::Tensor& buffer : layer->buffers()) {
        const bool is_known = std::ranges::any_of(
            buffers_, [&](const at::Tensor& each) { return each.is_same(buffer); });
        if (!is_known) buffers_.push_back(buffer);
      }
    }
  }
}

RunPart Segment::run_part(const nn::DrawPlace& place) const {
  return [this, place](std::size_t part, const nn::Values& inputs, LayerMarks& marks) {
    return parts_[part](inputs, place, {.marks = &marks});
  };
}

nn::Values Segment::pass(const nn::Values& inputs, const nn::DrawPlace& place, const Notes& notes,
                         SampleSizes& sizes) const {
  nn::Values values = inputs;
  for (std::size_t k = 0; k < parts_.size(); ++k) {
    if (k > 0 && at::GradMode::is_enabled()) values = cut_off(values).values;
    values = parts_[k](values, place, notes);
    const Border& behind = (*borders_)[k];
    if (behind.exchanges()) values = behind.exchanged(values, sizes);
  }
  return values;
}

nn::Values Segment::forward(const nn::Values& inputs, nn::DrawPlace place, Kept& kept) {
  place.layer = parts_.front().first();
  kept.place = place;
  if (is_recomputed()) return forward_without_graph(inputs, kept);
  return run_with_graphs(borders_, inputs, run_part(place), Graphs::ForLater, kept.graph);
}

nn::Values Segment::evaluate(const nn::Values& inputs, const nn::DrawPlace& place,
                             SampleSizes& sizes) const {
  StateBefore before(buffers_);
  const PutBack put_back(before);
  nn::Values outputs =
      pass(without_gradient(inputs), place, {.generators = &before.generators()}, sizes);
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
    outputs = pass(learns ? cut_off(inputs).values : without_gradient(inputs), kept.place,
                   {.generators = &kept.before.generators()}, kept.graph.sizes);
  }
  has_generators_ |= !kept.before.generators().empty();
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
    run_with_graphs(borders_, kept.inputs, run_part(kept.place), Graphs::ForNow, kept.graph);
  }
  kept.inputs.clear();
  kept.before = {};
}

}  // namespace penstock::stage
