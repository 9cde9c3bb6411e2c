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
#include "penstock/runtime/probe/lone_rank.h"
#include "penstock/runtime/probe/one_layer.h"
#include "penstock/runtime/stage/backward.h"
#include "penstock/runtime/stage/cut.h"
#include "penstock/runtime/stage/loss_run.h"

namespace penstock::probe {
namespace {

using memory::LayerMemory;

nn::Values make(const nn::Form& form, c10::Device device) {
  nn::Values values;
  for (const nn::TensorForm& each : form) {
    if (each.dtype == at::ScalarType::Undefined) {
      values.emplace_back();
      continue;
    }
    const at::TensorOptions options = at::TensorOptions(each.dtype).device(device);
    values.push_back(at::zeros(each.sizes, options).requires_grad_(each.requires_grad));
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

// What a stage runs of a microbatch: a layer, or the loss.
struct Work {
  // Runs it with its graph, which `kept` gets; `graphs` as run_with_graphs() takes it.
  std::function<nn::Values(const nn::Values& inputs, stage::Graphs graphs, stage::KeptParts& kept)>
      with_graph;
  std::function<nn::Values(const nn::Values& inputs, stage::SampleSizes& sizes)> plain;
  std::vector<at::Tensor> parameters = {};
  std::shared_ptr<ExchangesAlone> exchanges = {};  // Null: it has none.
};

// Notes what a pass launches, and what comes in between.
class PassNotes {
 public:
  explicit PassNotes(Meter& meter) : meter_(meter) {}

  void begin() {
    meter_.take_kernels();
    pass_.clear();
    all_.clear();
    group_of_.clear();
    is_awaited_.clear();
  }
  void hear(const MessageEvent& event) {
    add_kernels();
    if (event.kind == MessageEvent::Kind::Begin) {
      if (pass_.empty() || pass_.back().kind != Step::Kind::Begin) {
        pass_.push_back({.kind = Step::Kind::Begin});
        is_awaited_.push_back(false);
      }
      pass_.back().bytes += event.bytes;
      group_of_[event.number] = is_awaited_.size() - 1;
      return;
    }
    const std::size_t group = group_of_.at(event.number);
    if (is_awaited_[group]) return;
    is_awaited_[group] = true;
    pass_.push_back({.kind = Step::Kind::Await, .number = static_cast<std::int64_t>(group)});
  }
  // Gives all that has been launched; `pass` gets it in its order, if anything came in between.
  devices::Kernels end(devices::Pass& pass) {
    add_kernels();
    pass = is_awaited_.empty() ? devices::Pass() : pass_;
    return all_;
  }

 private:
  using Step = devices::PassStep;

  void add_kernels() {
    const devices::Kernels kernels = meter_.take_kernels();
    if (kernels.empty()) return;
    for (const auto& [kernel, count] : kernels) all_[kernel] += count;
    pass_.push_back({.kernels = kernels});
  }

  Meter& meter_;
  devices::Pass pass_;
  devices::Kernels all_;
  std::map<std::int64_t, std::size_t> group_of_;  // Groups of messages, by a message's number.
  std::vector<bool> is_awaited_;                  // Whether somebody waited, by group.
};

// What comes in.
struct Incoming {
  nn::Form form;
  stage::SampleSizes sizes;  // What is known of the samples.
};

// What the passes of a work do to memory.
class Probe {
 public:
  // Whether its inputs are the work's own once it has run, as the outputs of the last layer are the
  // loss's.
  enum class Inputs : std::uint8_t { OfCaller, OfWork };

  Probe(Work work, Incoming incoming, const Place& place, Inputs whose = Inputs::OfCaller)
      : work_(std::move(work)),
        incoming_(std::move(incoming)),
        device_(place.device),
        whose_(whose),
        meter_(place.make_meter()),
        notes_(*meter_) {
    if (work_.exchanges) {
      work_.exchanges->tell([this](const MessageEvent& event) { notes_.hear(event); });
    }
  }
  ~Probe() {
    if (work_.exchanges) work_.exchanges->tell({});
  }
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  LayerMemory measure() {
    plain_forward();
    passes();
    return memory_;
  }
  // The same of a work whose graph is made again, behind measure().
  LayerMemory measure_again() {
    graphs_ = stage::Graphs::ForNow;
    const bool keeps_output = memory_.keeps_output;
    passes();
    memory_.keeps_output = keeps_output;  // What is behind an exchange is not made again.
    return memory_;
  }

  // What goes to the next layer.
  const Incoming& outgoing() const { return outgoing_; }

 private:
  // A forward with its graph, and what of it a caller has.
  struct Run {
    nn::Values inputs;
    nn::Values outputs;
    stage::KeptParts kept;
    std::int64_t start = 0;

    nn::Values& leaves() { return kept.parts.front().leaves; }
  };

  void passes() {
    for (const bool first : {true, false}) {
      backward(first);
      halves(first);
    }
  }

  void plain_forward() {
    const nn::Values inputs = make(incoming_.form, device_);
    const std::int64_t start = begin();
    stage::SampleSizes sizes = incoming_.sizes;
    const nn::Values outputs = work_.plain(stage::without_gradient(inputs), sizes);
    memory_.plain_forward_peak = meter_->peak() - start;
    memory_.output = bytes_of(outputs, inputs);
  }

  Run forward() {
    const c10::AutoGradMode grad_mode(true);
    Run run{.inputs = make(incoming_.form, device_)};
    run.kept.sizes = incoming_.sizes;
    run.start = begin();
    const Sent before = sent();
    run.outputs = work_.with_graph(run.inputs, graphs_, run.kept);
    memory_.forward_kernels = notes_.end(memory_.forward_pass);
    note_sent(before, memory_.forward_sent, memory_.forward_exchanges);
    memory_.forward_peak = meter_->peak() - run.start;
    memory_.keeps_input = is_held(run.inputs, run.leaves());
    memory_.keeps_output = is_held(run.outputs);
    memory_.kept = meter_->now() - run.start - memory_.output;
    if (graphs_ == stage::Graphs::ForLater) {
      outgoing_ = {.form = nn::form_of(run.outputs), .sizes = run.kept.sizes};
    }
    return run;
  }

  // Zeros, as large as the gradients that come from behind.
  nn::Values gradients() const {
    nn::Form form = outgoing_.form;
    for (nn::TensorForm& each : form) {
      if (!std::exchange(each.requires_grad, false)) each.dtype = at::ScalarType::Undefined;
    }
    return make(form, device_);
  }

  void backward(bool first) {
    prepare(first);
    Run run = forward();
    const nn::Values given = gradients();
    hand_over(run);
    run.outputs.clear();
    const std::int64_t start = begin();
    const Sent before = sent();
    nn::Values gradients = given;
    for (std::vector<stage::KeptPart>& parts = run.kept.parts; !parts.empty(); parts.pop_back()) {
      backward_of_part(run, parts.size() - 1, gradients);
    }
    memory_.backward_kernels = notes_.end(memory_.backward_pass);
    (first ? memory_.backward_peak.first : memory_.backward_peak.later) = meter_->peak() - start;
    memory_.input_gradient = bytes_of(gradients);
    note_sent(before, memory_.backward_sent, memory_.backward_exchanges);
  }

  // Does what a stage does (stage/stage.cpp): gradients for the part before travel while those of
  // weights are computed.
  static void backward_of_part(Run& run, std::size_t k, nn::Values& gradients) {
    const stage::KeptPart& part = run.kept.parts[k];
    gradients = stage::begin_backward(run.kept, k, std::move(gradients));
    if (!stage::sends_gradients(run.kept, k)) {
      gradients =
          stage::hand_back(run.kept, k, stage::backward(part.outputs, gradients, part.leaves));
      return;
    }
    stage::SplitBackward split = stage::backward_input(part.outputs, gradients, part.leaves);
    gradients = stage::hand_back(run.kept, k, std::move(split.input_gradients));
    split.weights.run();
  }

  void halves(bool first) {
    prepare(first);
    Run run = forward();
    const nn::Values given = gradients();
    const std::int64_t handed_over = hand_over(run);
    run.outputs.clear();
    std::int64_t start = begin();
    nn::Values gradients = given;
    std::vector<stage::KeptPart>& parts = run.kept.parts;
    for (std::size_t k = parts.size(); k-- > 0;) {
      gradients = stage::begin_backward(run.kept, k, std::move(gradients));
      stage::SplitBackward split =
          stage::backward_input(parts[k].outputs, gradients, parts[k].leaves);
      parts[k] = {.weights = std::move(split.weights)};
      gradients = stage::hand_back(run.kept, k, std::move(split.input_gradients));
    }
    memory_.input_kernels = notes_.end(memory_.input_pass);
    memory_.input_peak = meter_->peak() - start;
    memory_.half_keeps_input = is_held(run.inputs);
    memory_.half_keeps_gradient = is_held(given);
    memory_.half_kept =
        meter_->now() - (run.start - handed_over) - bytes_of(given) - bytes_of(gradients, given);
    start = begin();
    for (; !parts.empty(); parts.pop_back()) parts.back().weights.run();
    devices::Pass alone;  // Nothing comes in a W.
    memory_.weight_kernels = notes_.end(alone);
    (first ? memory_.weight_peak.first : memory_.weight_peak.later) = meter_->peak() - start;
  }

  // Returns: the bytes of inputs that only the work has from now on, if it still needs them.
  std::int64_t hand_over(Run& run) const {
    if (whose_ == Inputs::OfCaller) return 0;
    const std::int64_t bytes = bytes_of(run.inputs);
    run.inputs.clear();
    stage::empty(run.leaves());
    return bytes;
  }

  // Prepares a pass that makes the parameters' gradients (`first`), or one that finds them.
  void prepare(bool first) {
    if (!first) return;
    for (at::Tensor& parameter : work_.parameters) parameter.mutable_grad().reset();
  }

  Sent sent() const { return work_.exchanges ? work_.exchanges->sent() : Sent(); }

  void note_sent(const Sent& before, std::int64_t& bytes, std::int64_t& exchanges) const {
    const Sent now = sent();
    bytes = now.bytes - before.bytes;
    exchanges = now.exchanges - before.exchanges;
  }

  std::int64_t begin() {
    meter_->reset_peak();
    notes_.begin();
    return meter_->now();
  }

  Work work_;
  Incoming incoming_;
  Incoming outgoing_;
  c10::Device device_;
  Inputs whose_;
  stage::Graphs graphs_ = stage::Graphs::ForLater;
  std::unique_ptr<Meter> meter_;
  PassNotes notes_;
  LayerMemory memory_;
};

// A layer, of one rank or of several that share it.
Work work_of(const OneLayer& layer, std::int64_t seed) {
  const nn::DrawPlace place{.seed = seed};
  const auto parts = layer.parts;
  const auto borders = std::make_shared<const stage::Borders>(parts->borders);
  return {.with_graph =
              [parts, borders, place](const nn::Values& inputs, stage::Graphs graphs,
                                      stage::KeptParts& kept) {
                const auto run = [&](std::size_t part, const nn::Values& values,
                                     stage::LayerMarks&) {
                  return parts->runs[part](values, place);
                };
                return stage::run_with_graphs(borders, inputs, run, graphs, kept);
              },
          .plain =
              [parts, place](const nn::Values& inputs, stage::SampleSizes& sizes) {
                nn::Values values = inputs;
                for (std::size_t part = 0; part < parts->runs.size(); ++part) {
                  values = parts->runs[part](values, place);
                  values = parts->borders[part].exchanged(values, sizes);
                }
                return values;
              },
          .parameters = layer.built.layer->parameters()};
}

// The loss of whole outputs.
Work work_of(const nn::Loss& loss, const nn::Values& targets) {
  const auto borders = std::make_shared<const stage::Borders>(1);
  return {.with_graph =
              [loss, targets, borders](const nn::Values& inputs, stage::Graphs graphs,
                                       stage::KeptParts& kept) {
                const auto run = [&](std::size_t, const nn::Values& values, stage::LayerMarks&) {
                  return nn::Values(loss(values, targets));
                };
                return stage::run_with_graphs(borders, inputs, run, graphs, kept);
              },
          .plain = [loss, targets](const nn::Values& inputs, stage::SampleSizes&) -> nn::Values {
            return loss(inputs, targets);
          }};
}

// The loss that ranks compute in pieces.
Work work_of(const nn::Loss& loss, const nn::Values& targets,
             const std::shared_ptr<stage::Exchanges>& exchanges) {
  const auto shared = std::make_shared<const stage::LossRun>(loss.pieces(), exchanges);
  return {.with_graph =
              [shared, targets](const nn::Values& inputs, stage::Graphs, stage::KeptParts& kept) {
                return nn::Values(shared->forward(inputs, targets, /*untrained=*/nullptr, kept));
              },
          .plain = [shared, targets](const nn::Values& inputs, stage::SampleSizes& sizes)
              -> nn::Values { return shared->evaluate(inputs, targets, sizes); }};
}

void describe(const nn::BuiltLayer& built, const std::string& layer_name, std::int32_t sharers,
              LayerMemory& memory) {
  for (const nn::ModelParameter& each : nn::parameters_of(built, layer_name)) {
    memory.parameters.push_back(
        {.name = each.name,
         .type = c10::toString(each.tensor.scalar_type()),
         .element_bytes = static_cast<std::int64_t>(each.tensor.element_size()),
         .elements = each.tensor.numel(),
         .is_trainable = each.tensor.requires_grad(),
         .is_tied = each.is_tied,
         .copies = each.cut.is_whole() ? sharers : each.cut.copies});
  }
  for (const at::Tensor& buffer : built.layer->buffers()) {
    if (buffer.defined()) memory.buffers += static_cast<std::int64_t>(buffer.nbytes());
  }
}

// What the first one of layers that are alike showed.
struct Known {
  LayerMemory memory;
  LayerMemory again;  // The same in segments that are computed again, where ranks share the layer.
  std::string name;
  Incoming outgoing;
};

Known probe_layer(const std::vector<nn::LayerSpec>& model, std::size_t index,
                  const Incoming& incoming, const Alone& alone, const Probing& probing,
                  const std::shared_ptr<ExchangesAlone>& exchanges) {
  const OneLayer layer = build_alone(model, index, alone);
  Work work = work_of(layer, alone.seed);
  work.exchanges = exchanges;
  Probe probe(std::move(work), incoming, probing.place);
  Known known{
      .memory = probe.measure(), .name = model[index].meta.name, .outgoing = probe.outgoing()};
  describe(layer.built, known.name, probing.sharers, known.memory);
  if (!alone.exchanges) return known;
  known.again = probe.measure_again();
  known.again.parameters = known.memory.parameters;
  known.again.buffers = known.memory.buffers;
  return known;
}

// The memory of a layer like a known one: names are its own.
LayerMemory renamed(LayerMemory memory, const std::string& known, const std::string& name) {
  for (memory::Parameter& parameter : memory.parameters) {
    if (!parameter.is_tied) parameter.name = name + parameter.name.substr(known.size());
  }
  return memory;
}

}  // namespace

Place host() {
  return {.make_meter = [] { return std::make_unique<AllocationMeter>(); }};
}

ModelMemory probe_model(const std::vector<nn::LayerSpec>& model, const nn::Values& inputs,
                        const nn::Values& targets, const nn::Loss& loss, const Probing& probing) {
  ModelMemory result;
  Alone alone{.seed = probing.seed, .type = probing.type, .device = probing.place.device};
  std::shared_ptr<ExchangesAlone> exchanges;
  if (probing.sharers > 1) {
    exchanges = exchanges_alone({.index = 0, .of = probing.sharers});
    alone.exchanges = exchanges;
  }
  std::map<Likeness, Known> known;
  Incoming incoming{.form = nn::form_of(inputs)};
  for (std::size_t i = 0; i < model.size(); ++i) {
    const nn::LayerSpec& spec = model[i];
    const Likeness likeness = likeness_of(spec, incoming.form);
    auto found = known.find(likeness);
    if (found == known.end()) {
      probing.begins(str("layer ", in_quotes(spec.meta.name)));
      found =
          known.emplace(likeness, probe_layer(model, i, incoming, alone, probing, exchanges)).first;
    }
    const Known& like = found->second;
    result.layers.push_back(renamed(like.memory, like.name, spec.meta.name));
    if (alone.exchanges) result.again.push_back(renamed(like.again, like.name, spec.meta.name));
    incoming = like.outgoing;
  }
  probing.begins("the loss");
  nn::Values here;
  for (const at::Tensor& target : targets) here.push_back(target.to(probing.place.device));
  Work last =
      alone.exchanges && loss.pieces() ? work_of(loss, here, alone.exchanges) : work_of(loss, here);
  last.exchanges = exchanges;
  result.loss = Probe(std::move(last), incoming, probing.place, Probe::Inputs::OfWork).measure();
  return result;
}

}  // namespace penstock::probe
