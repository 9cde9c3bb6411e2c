#include "penstock/runtime/probe/layer_probe.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <map>
#include <set>
#include <string>
#include <utility>

#include "penstock/core/text.h"
#include "penstock/runtime/nn/form.h"
#include "penstock/runtime/nn/model.h"
#include "penstock/runtime/probe/allocation_meter.h"
#include "penstock/runtime/probe/one_layer.h"
#include "penstock/runtime/stage/backward.h"
#include "penstock/runtime/stage/cut.h"

namespace penstock::probe {
namespace {

using memory::LayerMemory;

nn::Values make(const nn::Form& form) {
  nn::Values values;
  for (const nn::TensorForm& each : form) {
    if (each.dtype == at::ScalarType::Undefined) {
      values.emplace_back();
      continue;
    }
    values.push_back(
        at::zeros(each.sizes, at::TensorOptions(each.dtype)).requires_grad_(each.requires_grad));
  }
  return values;
}

const c10::StorageImpl* storage(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

// Bytes of storages that are not among `others`.
std::int64_t bytes_of(const nn::Values& values, const nn::Values& others = {}) {
  std::set<const c10::StorageImpl*> seen = {nullptr};
  for (const at::Tensor& other : others) seen.insert(storage(other));
  std::int64_t bytes = 0;
  for (const at::Tensor& value : values) {
    if (seen.insert(storage(value)).second) {
      bytes += static_cast<std::int64_t>(value.storage().nbytes());
    }
  }
  return bytes;
}

// Whether anybody but the tensors of `values` and of `also` has a part of their memory.
bool is_held(const nn::Values& values, const nn::Values& also = {}) {
  std::map<const c10::StorageImpl*, std::size_t> known;
  for (const nn::Values* tensors : {&values, &also}) {
    for (const at::Tensor& tensor : *tensors) ++known[storage(tensor)];
  }
  for (const at::Tensor& value : values) {
    if (value.defined() && value.storage().use_count() > known[storage(value)]) return true;
  }
  return false;
}

// One function of a microbatch, and what its passes do to memory.
class Probe {
 public:
  // Whether its inputs are the function's own once it has run, as the outputs of the last layer are
  // the loss's.
  enum class Inputs : std::uint8_t { OfCaller, OfFunction };

  Probe(Function function, std::vector<at::Tensor> parameters, const nn::Form& inputs,
        Inputs whose = Inputs::OfCaller)
      : function_(std::move(function)),
        parameters_(std::move(parameters)),
        form_(inputs),
        whose_(whose) {}

  LayerMemory measure() {
    plain_forward();
    for (const bool first : {true, false}) {
      backward(first);
      halves(first);
    }
    return std::move(memory_);
  }

  const nn::Form& outputs() const { return outputs_; }

 private:
  // A forward with its graph, and what of it a caller has.
  struct Run {
    nn::Values inputs;
    nn::Values leaves;
    nn::Values outputs;
    std::int64_t start = 0;
  };

  void plain_forward() {
    const nn::Values inputs = make(form_);
    const std::int64_t start = begin();
    function_(stage::without_gradient(inputs));
    memory_.plain_forward_peak = meter_.peak() - start;
  }

  Run forward() {
    const c10::AutoGradMode grad_mode(true);
    Run run{.inputs = make(form_)};
    run.start = begin();
    stage::Cut cut = stage::cut_off(run.inputs);
    run.leaves = std::move(cut.leaves);
    run.outputs = function_(cut.values);
    memory_.forward_peak = meter_.peak() - run.start;
    cut.values.clear();
    memory_.output = bytes_of(run.outputs, run.inputs);
    memory_.keeps_input = is_held(run.inputs, run.leaves);
    memory_.keeps_output = is_held(run.outputs);
    memory_.kept = meter_.now() - run.start - memory_.output;
    outputs_ = nn::form_of(run.outputs);
    return run;
  }

  void backward(bool first) {
    prepare(first);
    Run run = forward();
    const nn::Values gradients = gradients_of(run.outputs);
    hand_over(run);
    const std::int64_t start = begin();
    const nn::Values results = stage::backward(run.outputs, gradients, run.leaves);
    (first ? memory_.backward_peak.first : memory_.backward_peak.later) = meter_.peak() - start;
    memory_.input_gradient = bytes_of(results);
  }

  void halves(bool first) {
    prepare(first);
    Run run = forward();
    nn::Values gradients = gradients_of(run.outputs);
    const std::int64_t handed_over = hand_over(run);
    std::int64_t start = begin();
    stage::SplitBackward split = stage::backward_input(run.outputs, gradients, run.leaves);
    memory_.input_peak = meter_.peak() - start;
    run.outputs.clear();
    run.leaves.clear();
    memory_.half_keeps_input = is_held(run.inputs);
    memory_.half_keeps_gradient = is_held(gradients);
    const std::int64_t given = bytes_of(gradients);
    memory_.half_kept = meter_.now() - (run.start - handed_over) - given -
                        bytes_of(split.input_gradients, gradients);
    start = begin();
    split.weights.run();
    (first ? memory_.weight_peak.first : memory_.weight_peak.later) = meter_.peak() - start;
  }

  // Returns: the bytes of inputs that only the function has from now on, if it still needs them.
  std::int64_t hand_over(Run& run) const {
    if (whose_ == Inputs::OfCaller) return 0;
    const std::int64_t bytes = bytes_of(run.inputs);
    run.inputs.clear();
    stage::empty(run.leaves);
    return bytes;
  }

  // Prepares a pass that makes the parameters' gradients (`first`), or one that finds them.
  void prepare(bool first) {
    if (!first) return;
    for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  }

  std::int64_t begin() {
    meter_.reset_peak();
    return meter_.now();
  }

  Function function_;
  std::vector<at::Tensor> parameters_;
  nn::Form form_;
  Inputs whose_;
  nn::Form outputs_;
  AllocationMeter meter_;
  LayerMemory memory_;
};

void describe(const nn::BuiltLayer& built, const std::string& layer_name, LayerMemory& memory) {
  for (const nn::ModelParameter& each : nn::parameters_of(built, layer_name)) {
    memory.parameters.push_back(
        {.name = each.name,
         .type = c10::toString(each.tensor.scalar_type()),
         .element_bytes = static_cast<std::int64_t>(each.tensor.element_size()),
         .elements = each.tensor.numel(),
         .is_trainable = each.tensor.requires_grad(),
         .is_tied = each.is_tied});
  }
  for (const at::Tensor& buffer : built.layer->buffers()) {
    if (buffer.defined()) memory.buffers += static_cast<std::int64_t>(buffer.nbytes());
  }
}

// What the first one of layers that are alike showed.
struct Known {
  LayerMemory memory;
  std::string name;
  nn::Form outputs;
};

Known probe_layer(const std::vector<nn::LayerSpec>& model, std::size_t index,
                  const nn::Form& inputs, std::int64_t seed, at::ScalarType type) {
  const OneLayer layer = build_alone(model, index, seed, type);
  Probe probe(layer.function, layer.built.layer->parameters(), inputs);
  Known known{
      .memory = probe.measure(), .name = model[index].meta.name, .outputs = probe.outputs()};
  describe(layer.built, known.name, known.memory);
  return known;
}

// The memory of a layer like a known one: names are its own.
LayerMemory renamed(const Known& known, const std::string& name) {
  LayerMemory memory = known.memory;
  for (memory::Parameter& parameter : memory.parameters) {
    if (!parameter.is_tied) parameter.name = name + parameter.name.substr(known.name.size());
  }
  return memory;
}

}  // namespace

ModelMemory probe_model(const std::vector<nn::LayerSpec>& model, const nn::Values& inputs,
                        const nn::Values& targets, const nn::Loss& loss, std::int64_t seed,
                        at::ScalarType type) {
  ModelMemory result;
  std::map<Likeness, Known> known;
  nn::Form form = nn::form_of(inputs);
  for (std::size_t i = 0; i < model.size(); ++i) {
    const nn::LayerSpec& spec = model[i];
    const Likeness likeness = likeness_of(spec, form);
    auto found = known.find(likeness);
    if (found == known.end()) {
      found = known.emplace(likeness, probe_layer(model, i, form, seed, type)).first;
    }
    result.layers.push_back(renamed(found->second, spec.meta.name));
    form = found->second.outputs;
  }
  Probe last([&](const nn::Values& outputs) { return nn::Values(loss(outputs, targets)); }, {},
             form, Probe::Inputs::OfFunction);
  result.loss = last.measure();
  return result;
}

}  // namespace penstock::probe
