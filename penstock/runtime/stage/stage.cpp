#include "penstock/runtime/stage/stage.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/exception_text.h"
#include "penstock/core/text.h"
#include "penstock/runtime/nn/loss_layer.h"
#include "penstock/runtime/stage/backward.h"
#include "penstock/runtime/stage/cut.h"
#include "penstock/runtime/stage/in_engine.h"
#include "penstock/runtime/stage/untrained.h"

namespace penstock::stage {
namespace {

// The device as tensors name it: "cuda" is the one that this thread has chosen.
c10::Device with_index(c10::Device device) {
  if (device.is_cpu() || device.has_index()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

at::Tensor value_of(const nn::Loss& loss, const nn::Values& outputs, const nn::Values& targets) {
  try {
    return loss(outputs, targets);
  } catch (...) {
    rethrow_from("the loss");
  }
}

// Has layers in eval() while it lives.  Then every module is in its own mode again: a model may
// have modules in eval() that train nothing, a frozen batch norm for one.
class Evaluation {
 public:
  explicit Evaluation(const std::vector<std::shared_ptr<nn::Layer>>& layers) {
    for (const auto& layer : layers) {
      note(*layer);
      if (&layer->computing() != layer.get()) note(layer->computing());
      layer->eval();
    }
  }
  // Modules follow the one that they are in, which is noted before them.
  ~Evaluation() {
    for (const auto& [module, trains] : modes_) module->train(trains);
  }
  Evaluation(const Evaluation&) = delete;
  Evaluation& operator=(const Evaluation&) = delete;

 private:
  void note(const torch::nn::Module& root) {
    for (const auto& module : root.modules()) modes_.emplace_back(module, module->is_training());
  }

  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
};

nn::DrawPlace in_pass(nn::DrawPlace place, nn::Pass pass) {
  place.pass = pass;
  return place;
}

// What has failed in a backward, on its way out of torch's engine.
struct BackwardFailure {
  std::string where;  // "backward of layer 3 (Linear)".
  std::exception_ptr thrown;
};

// Runs a part of a segment's backward, or of the loss's, which is behind them.
// Throws: BackwardFailure for what a node of the graph throws.
template <class Part>
void of_segment(const std::vector<Segment>& segments, std::size_t segment,
                const Segment::Kept& kept, const Part& part) {
  try {
    part();
  } catch (const NodeFailure& failure) {
    const bool is_loss = segment == segments.size();
    throw BackwardFailure{
        str("backward of ", is_loss ? "the loss" : segments[segment].maker_of(failure, kept)),
        failure.thrown()};
  }
}

}  // namespace

Stage::Activation::Activation(std::shared_ptr<ActivationCount> count) : count_(std::move(count)) {
  const std::scoped_lock lock(count_->mutex);
  ++count_->alive;
  count_->peak = std::max(count_->peak, count_->alive);
}

Stage::Activation::~Activation() {
  const std::scoped_lock lock(count_->mutex);
  --count_->alive;
}

Stage::Stage(StageId id, const std::vector<nn::LayerSpec>& model, std::int64_t first_layer,
             std::int64_t end_layer, std::int64_t seed, std::shared_ptr<ActivationCount> count,
             const Checkpointing& checkpointing, const Making& making)
    : id_(id),
      device_(with_index(making.device)),
      seed_(seed),
      layers_(model, first_layer, end_layer, seed, making),
      count_(std::move(count)) {
  if (making.leaves == Leaves::ParametersOnly) untrained_ = std::make_shared<Untrained>(layers_);
  add_segments(model, checkpointing);
}

void Stage::add_segments(const std::vector<nn::LayerSpec>& model,
                         const Checkpointing& checkpointing) {
  const std::int64_t first = layers_.first();
  const std::int64_t end = std::min(layers_.end(), nn::layers_in_line(model));
  const auto layer = [&](std::int64_t i) { return layers_.all().begin() + (i - first); };
  for (const partition::SegmentRange& range :
       partition::segment_ranges(nn::meta_of(model), first, end, checkpointing)) {
    segments_.emplace_back(
        LayerRun(model, range.first, {layer(range.first), layer(range.end)}, untrained_),
        range.is_recomputed ? Activations::Recomputed : Activations::Kept);
  }
}

void Stage::begin_step(const nn::DrawPlace& place) {
  place_ = place;
  place_.seed = seed_;
}

nn::DrawPlace Stage::place_of(Microbatch microbatch) const {
  nn::DrawPlace place = place_;
  place.microbatch += microbatch.value;
  return place;
}

// The source of random numbers for what runs beside layers.
nn::TorchDraws Stage::torch_draws() const { return layers_.all().back()->torch_draws(); }

// Runs the layers; without an activation to fill, keeps no graph.
nn::Values Stage::run(Microbatch microbatch, const nn::Values& inputs, Activation* activation) {
  const bool training = activation != nullptr;
  const nn::DrawPlace place = place_of(microbatch);
  nn::Values values = inputs;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    if (!training) {
      values = segments_[i].evaluate(values, place);
      continue;
    }
    if (i > 0) values = detached(values);
    values = segments_[i].forward(values, place, activation->segments.emplace_back());
  }
  return values;
}

nn::Values Stage::forward(Microbatch microbatch, const nn::Values& inputs, bool keep_graph) {
  const c10::AutoGradMode grad_mode(keep_graph);
  if (!keep_graph) {
    const Evaluation evaluation(layers_.all());
    return without_gradient(run(microbatch, inputs, nullptr));
  }
  auto activation = std::make_unique<Activation>(count_);
  nn::Values results = detached(run(microbatch, inputs, activation.get()));
  keep(microbatch, std::move(activation));
  return results;
}

at::Tensor Stage::loss_of(const nn::DrawPlace& place, const nn::Values& outputs,
                          const nn::Values& targets, const nn::Loss& loss) {
  const nn::DrawScope scope(place, nullptr, torch_draws());
  if (!untrained_ || !untrained_->is_due(place)) return value_of(loss, outputs, targets);
  Nodes known = Untrained::behind(outputs);
  at::Tensor value = value_of(loss, outputs, targets);
  untrained_->check_loss(value, std::move(known));
  return value;
}

at::Tensor Stage::forward_loss(Microbatch microbatch, const nn::Values& inputs,
                               const nn::Values& targets, const nn::Loss& loss, bool keep_graph) {
  const c10::AutoGradMode grad_mode(keep_graph);
  std::optional<Evaluation> evaluation;  // Covers the loss, too: it may be a layer.
  if (!keep_graph) evaluation.emplace(layers_.all());
  auto activation = keep_graph ? std::make_unique<Activation>(count_) : nullptr;
  nn::Values outputs = run(microbatch, inputs, activation.get());
  nn::DrawPlace place = place_of(microbatch);
  place.layer = layers_.end();
  if (keep_graph && segments_.back().is_recomputed()) {
    Cut cut = cut_off(outputs);
    empty(cut.leaves);  // Lets the loss work in the outputs' memory.
    activation->segments.push_back({.leaves = std::move(cut.leaves), .place = place});
    outputs = std::move(cut.values);
  }
  at::Tensor value = loss_of(place, outputs, targets, loss);
  if (value.numel() != 1) {
    throw Error(penstock::str("the loss has shape ", value.sizes(),
                              "; it must be a scalar per microbatch"));
  }
  if (value.dim() > 0) value = value.reshape({});
  if (keep_graph && !value.requires_grad()) {
    throw Error("the loss does not require a gradient: nothing that it depends on can be trained");
  }
  // Memory of its own: torch's losses reduce in place, so theirs keeps the storage of a whole
  // microbatch.
  at::Tensor result = value.detach().clone();
  if (!keep_graph) return result;
  activation->segments.back().outputs = std::move(value);
  keep(microbatch, std::move(activation));
  return result;
}

void Stage::keep(Microbatch microbatch, std::unique_ptr<Activation> activation) {
  const std::scoped_lock lock(count_->mutex);
  if (activations_.size() <= microbatch.index()) activations_.resize(microbatch.index() + 1);
  auto& place = activations_[microbatch.index()];
  PENSTOCK_CHECK(!place, "stage ", id_, " microbatch ", microbatch, " runs forward twice");
  place = std::move(activation);
}

Stage::Activation& Stage::kept(Microbatch microbatch) {
  const std::scoped_lock lock(count_->mutex);
  PENSTOCK_CHECK(microbatch.index() < activations_.size() && activations_[microbatch.index()],
                 "stage ", id_, " microbatch ", microbatch, " has no activation");
  return *activations_[microbatch.index()];
}

std::unique_ptr<Stage::Activation> Stage::take(Microbatch microbatch) {
  kept(microbatch);
  const std::scoped_lock lock(count_->mutex);
  return std::move(activations_[microbatch.index()]);
}

const Segment::Kept& Stage::graph(std::size_t segment, Activation& activation) const {
  Segment::Kept& kept = activation.segments[segment];
  if (segment < segments_.size()) segments_[segment].recompute(kept);
  return kept;
}

// Throws: Error that names the layer, or the loss.
template <class Part>
void Stage::run_backward(const Part& part) const {
  std::string where;
  const auto noting_where = [&] {
    try {
      part();
    } catch (const BackwardFailure& failure) {
      where = failure.where;
      std::rethrow_exception(failure.thrown);  // The engine keeps what Python has raised.
    }
  };
  try {
    layers_.need_engine() ? in_engine(noting_where) : noting_where();
  } catch (...) {
    if (where.empty()) throw;
    rethrow_from(where);
  }
}

void Stage::run_whole(Activation& whole, nn::Values& gradients) const {
  for (; !whole.segments.empty(); whole.segments.pop_back()) {
    const std::size_t last = whole.segments.size() - 1;
    const Segment::Kept& kept = graph(last, whole);
    const nn::DrawScope scope(in_pass(kept.place, nn::Pass::Backward), nullptr, torch_draws());
    of_segment(segments_, last, kept,
               [&] { gradients = stage::backward(kept.outputs, gradients, kept.leaves); });
  }
}

void Stage::run_inputs(Activation& half, nn::Values& gradients) const {
  for (std::size_t i = half.segments.size(); i-- > 0;) {
    const Segment::Kept& kept = graph(i, half);
    const nn::DrawScope scope(in_pass(kept.place, nn::Pass::Backward), nullptr, torch_draws());
    SplitBackward split;
    of_segment(segments_, i, kept,
               [&] { split = stage::backward_input(kept.outputs, gradients, kept.leaves); });
    half.segments[i] = {
        .weights = std::move(split.weights), .place = kept.place, .marks = kept.marks};
    gradients = std::move(split.input_gradients);
  }
}

nn::Values Stage::backward(Microbatch microbatch, const nn::Values& output_gradients) {
  const std::unique_ptr<Activation> whole = take(microbatch);
  nn::Values gradients = output_gradients;
  run_backward([&] { run_whole(*whole, gradients); });
  return gradients;
}

nn::Values Stage::backward_input(Microbatch microbatch, const nn::Values& output_gradients) {
  Activation& half = kept(microbatch);
  nn::Values gradients = output_gradients;
  const bool splits = layers_.split_backward();
  run_backward([&] { splits ? run_inputs(half, gradients) : run_whole(half, gradients); });
  half.is_half = true;
  return gradients;
}

void Stage::backward_weight(Microbatch microbatch) {
  const std::unique_ptr<Activation> half = take(microbatch);
  PENSTOCK_CHECK(half->is_half, "stage ", id_, " microbatch ", microbatch, " has had no I");
  run_backward([&] {
    for (; !half->segments.empty(); half->segments.pop_back()) {
      Segment::Kept& kept = half->segments.back();
      const nn::DrawScope scope(in_pass(kept.place, nn::Pass::Weights), nullptr, torch_draws());
      of_segment(segments_, half->segments.size() - 1, kept, [&] { kept.weights.run(); });
    }
  });
}

void Stage::drop_gradients() {
  for (const NamedParameter& parameter : parameters()) parameter.tensor.mutable_grad().reset();
}

void Stage::drop_activations() {
  std::vector<std::unique_ptr<Activation>> dropped;  // Outside of the lock, which they take.
  const std::scoped_lock lock(count_->mutex);
  std::swap(dropped, activations_);
}

}  // namespace penstock::stage
