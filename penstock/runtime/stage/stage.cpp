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
#include "penstock/runtime/stage/stage_segments.h"
#include "penstock/runtime/stage/untrained.h"

namespace penstock::stage {
namespace {

// The device as tensors name it: "cuda" is the one that this thread has chosen.
c10::Device with_index(c10::Device device) {
  if (device.is_cpu() || device.has_index()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
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

// Runs the backward of a part of a segment, or of the loss, which is behind them.
// Throws: BackwardFailure for what a node of the graph throws.
template <class Part>
void of_part(const std::vector<Segment>& segments, std::size_t segment, std::size_t number,
             const Segment::Kept& kept, const Part& part) {
  try {
    part();
  } catch (const NodeFailure& failure) {
    const bool is_loss = segment == segments.size();
    throw BackwardFailure{
        str("backward of ",
            is_loss ? "the loss" : segments[segment].maker_of(failure, number, kept)),
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
      exchanges_(making.exchanges != nullptr),
      layers_(model, first_layer, end_layer, seed, making),
      count_(std::move(count)) {
  std::shared_ptr<Untrained> untrained;
  if (making.leaves == Leaves::ParametersOnly) untrained = std::make_shared<Untrained>(layers_);
  segments_ = make_segments(model, layers_, checkpointing, making.exchanges, untrained);
  loss_.emplace(making.exchanges, untrained);
}

bool Stage::may_be_left_for(const Stage& other) const {
  if (!exchanges_ || layers_.need_engine()) return false;
  if (std::ranges::any_of(segments_, &Segment::puts_generators_back)) return false;
  return this != &other || std::ranges::none_of(segments_, &Segment::puts_buffers_back);
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
nn::Values Stage::run(Microbatch microbatch, const nn::Values& inputs, Activation* activation,
                      SampleSizes& sizes) {
  const bool training = activation != nullptr;
  const nn::DrawPlace place = place_of(microbatch);
  nn::Values values = inputs;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    if (!training) {
      values = segments_[i].evaluate(values, place, sizes);
      continue;
    }
    if (i > 0) values = detached(values);
    Segment::Kept& kept = activation->segments.emplace_back();
    kept.graph.sizes = sizes;
    values = segments_[i].forward(values, place, kept);
    sizes = kept.graph.sizes;
  }
  return values;
}

nn::Values Stage::forward(Microbatch microbatch, const nn::Values& inputs, bool keep_graph) {
  const c10::AutoGradMode grad_mode(keep_graph);
  SampleSizes sizes;
  if (!keep_graph) {
    const Evaluation evaluation(layers_.all());
    return without_gradient(run(microbatch, inputs, nullptr, sizes));
  }
  auto activation = std::make_unique<Activation>(count_);
  nn::Values results = detached(run(microbatch, inputs, activation.get(), sizes));
  keep(microbatch, std::move(activation));
  return results;
}

at::Tensor Stage::forward_loss(Microbatch microbatch, const nn::Values& inputs,
                               const nn::Values& targets, const nn::Loss& loss, bool keep_graph) {
  const c10::AutoGradMode grad_mode(keep_graph);
  std::optional<Evaluation> evaluation;  // Covers the loss, too: it may be a layer.
  if (!keep_graph) evaluation.emplace(layers_.all());
  auto activation = keep_graph ? std::make_unique<Activation>(count_) : nullptr;
  SampleSizes sizes;
  nn::Values outputs = run(microbatch, inputs, activation.get(), sizes);
  nn::DrawPlace place = place_of(microbatch);
  place.layer = layers_.end();
  const LossCall call{.loss = loss, .targets = targets, .place = place, .draws = torch_draws()};
  at::Tensor value;
  if (!keep_graph) {
    value = loss_->evaluate(std::move(outputs), call, sizes);
  } else if (segments_.back().ends_graph() || loss_->is_shared(loss)) {
    std::vector<KeptPart>& layers = activation->segments.back().graph.parts;
    if (!layers.empty()) layers.back().outputs = without_memory(layers.back().outputs);
    activation->segments.push_back({.graph = {.sizes = sizes}, .place = place});
    value = loss_->apart(std::move(outputs), call, activation->segments.back().graph);
  } else {
    value = loss_->of(outputs, call);
  }
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
  activation->segments.back().graph.parts.back().outputs = {std::move(value)};
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

Segment::Kept& Stage::graph(std::size_t segment, Activation& activation) const {
  Segment::Kept& kept = activation.segments[segment];
  if (segment < segments_.size() && kept.graph.parts.empty()) segments_[segment].recompute(kept);
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

void Stage::run_weights(std::size_t segment, std::size_t part, const Segment::Kept& kept,
                        DeferredWeights& weights) const {
  const nn::DrawScope scope(in_pass(kept.place, nn::Pass::Weights), nullptr, torch_draws());
  of_part(segments_, segment, part, kept, [&] { weights.run(); });
}

void Stage::run_whole(Activation& whole, nn::Values& gradients) const {
  const bool splits = layers_.split_backward();
  for (; !whole.segments.empty(); whole.segments.pop_back()) {
    const std::size_t last = whole.segments.size() - 1;
    Segment::Kept& kept = graph(last, whole);
    std::vector<KeptPart>& parts = kept.graph.parts;
    for (; !parts.empty(); parts.pop_back()) {
      const std::size_t k = parts.size() - 1;
      const nn::DrawScope scope(in_pass(kept.place, nn::Pass::Backward), nullptr, torch_draws());
      gradients = begin_backward(kept.graph, k, std::move(gradients));
      if (!splits || !sends_gradients(kept.graph, k)) {
        of_part(segments_, last, k, kept,
                [&] { gradients = stage::backward(parts[k].outputs, gradients, parts[k].leaves); });
        gradients = hand_back(kept.graph, k, std::move(gradients));
        continue;
      }
      // The inputs' gradients are on their way while those of the weights are computed.
      SplitBackward split;
      of_part(segments_, last, k, kept,
              [&] { split = stage::backward_input(parts[k].outputs, gradients, parts[k].leaves); });
      gradients = hand_back(kept.graph, k, std::move(split.input_gradients));
      run_weights(last, k, kept, split.weights);
    }
  }
}

void Stage::run_inputs(Activation& half, nn::Values& gradients) const {
  for (std::size_t i = half.segments.size(); i-- > 0;) {
    Segment::Kept& kept = graph(i, half);
    std::vector<KeptPart>& parts = kept.graph.parts;
    for (std::size_t k = parts.size(); k-- > 0;) {
      const nn::DrawScope scope(in_pass(kept.place, nn::Pass::Backward), nullptr, torch_draws());
      gradients = begin_backward(kept.graph, k, std::move(gradients));
      SplitBackward split;
      of_part(segments_, i, k, kept,
              [&] { split = stage::backward_input(parts[k].outputs, gradients, parts[k].leaves); });
      parts[k] = {.weights = std::move(split.weights), .marks = std::move(parts[k].marks)};
      gradients = hand_back(kept.graph, k, std::move(split.input_gradients));
    }
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
      std::vector<KeptPart>& parts = kept.graph.parts;
      for (; !parts.empty(); parts.pop_back()) {
        run_weights(half->segments.size() - 1, parts.size() - 1, kept, parts.back().weights);
      }
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
