#include "penstock/plan/choose/layer_times.h"

#include <algorithm>
#include <numeric>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/choose/run_costs.h"

namespace penstock::choose {
namespace {

double parameter_bytes(const memory::LayerMemory& layer) {
  std::int64_t bytes = 0;
  for (const memory::Parameter& each : layer.parameters) bytes += each.bytes();
  return static_cast<double>(bytes);
}

LayerTimes on_device(const Device& device, const memory::LayerMemory& layer, double operations) {
  if (device.kernels && !layer.forward_kernels.empty()) {
    const auto seconds = [&](const devices::Kernels& pass) {
      return devices::seconds_of(pass, *device.kernels);
    };
    return {.forward = seconds(layer.forward_kernels),
            .backward = seconds(layer.backward_kernels),
            .input = seconds(layer.input_kernels),
            .weight = seconds(layer.weight_kernels),
            .forward_by_kind = devices::seconds_by_kind(layer.forward_kernels, *device.kernels),
            .backward_by_kind = devices::seconds_by_kind(layer.backward_kernels, *device.kernels)};
  }
  const auto slower = [&](double work, double bytes) {
    return std::max(work / device.flops, bytes / device.bandwidth);
  };
  const double weights = parameter_bytes(layer);
  const double kept = static_cast<double>(layer.kept + layer.output);
  const double gradient = static_cast<double>(layer.input_gradient);
  LayerTimes times{.forward = slower(operations, weights + kept),
                   .input = slower(operations, weights + kept + gradient),
                   .weight = slower(operations, weights + kept)};
  if (gradient == 0.0) times.input = 0.0;  // The first layer hands none on.
  times.backward = times.input + times.weight;
  return times;
}

void check_stages(const simulate::PerStage& costs, const char* name, std::int32_t stages) {
  const auto found = std::ssize(costs.rows());
  if (found == 1 || found == stages) return;
  throw ConfigError(
      str("costs: ", name, ": ", found, " stages; the configuration's own layout has ", stages),
      {"costs are those that `penstock report` fits to a run of this configuration, or that "
       "`penstock profile` measures: its mesh, schedule and partition say which layers each stage "
       "has",
       "or those of single layers, of `penstock profile --by-layer`"});
}

// Width of the residual stream.  A folder's model has it in its own files; its last norm is as
// wide.
double width_of(const config::ModelConfig& model, const partition::ModelMeta& layers,
                const memory::ModelMemory& memory) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].type == "DecoderNorm" && !memory.layers[i].parameters.empty()) {
      return static_cast<double>(memory.layers[i].parameters.front().elements);
    }
  }
  return static_cast<double>(model.hidden);
}

bool is_embedding(const std::string& type) {
  return type == "Embedding" || type == "DecoderEmbedding";
}

bool has_attention(const std::string& type) { return type == "Block" || type == "DecoderBlock"; }

}  // namespace

std::vector<double> forward_operations(const config::ModelConfig& model,
                                       const partition::ModelMeta& layers,
                                       const memory::MeasuredSize& size) {
  const auto positions = static_cast<double>(model.sequence_length);
  const double hidden = width_of(model, layers, size.memory);
  std::vector<double> operations;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const memory::LayerMemory& layer = size.memory.layers[i];
    if (size.context > 1 || layer.expert_parameters > 0) {  // Elements do not tell it.
      operations.push_back(devices::operations_of(layer.forward_kernels));
      continue;
    }
    double elements = 0.0;
    for (const memory::Parameter& each : size.memory.layers[i].parameters) {
      elements += static_cast<double>(each.elements);
    }
    if (is_embedding(layers[i].type)) elements = hidden;  // A row is looked up and added.
    double of_sample = 2.0 * positions * elements;
    if (has_attention(layers[i].type)) {
      of_sample += 2.0 * positions * positions * hidden / static_cast<double>(size.sharers);
    }
    operations.push_back(of_sample * static_cast<double>(size.microbatch));
  }
  return operations;
}

std::vector<LayerTimes> times_on(const Device& device, const config::ModelConfig& model,
                                 const partition::ModelMeta& layers,
                                 const memory::MeasuredSize& size) {
  const std::vector<double> operations = forward_operations(model, layers, size);
  std::vector<LayerTimes> times;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    times.push_back(on_device(device, size.memory.layers[i], operations[i]));
  }
  const LayerTimes loss = on_device(device, size.memory.loss, 0.0);
  times.back().forward += loss.forward;
  times.back().input += loss.input;
  times.back().backward += loss.input;
  times.back().forward_by_kind += loss.forward_by_kind;
  times.back().backward_by_kind += loss.backward_by_kind;
  return times;
}

void add_exchanges(const LinkSpeed& link, const memory::MeasuredSize& size,
                   const std::optional<devices::DeviceModel>& kernels,
                   std::vector<LayerTimes>& times) {
  if (size.sharers == 1) return;
  const devices::PassLink pass_link{.latency_s = link.latency,
                                    .bytes_per_s = link.bandwidth.value_or(0.0)};
  const auto waited = [&](const devices::Pass& pass, const devices::Kernels& all,
                          std::int64_t bytes, std::int64_t exchanges) {
    if (!kernels || pass.empty()) return exchange_time(link, bytes, exchanges);
    return devices::seconds_of(pass, *kernels, pass_link) - devices::seconds_of(all, *kernels);
  };
  const auto forward_of = [&](const memory::LayerMemory& layer) {
    return waited(layer.forward_pass, layer.forward_kernels, layer.forward_sent,
                  layer.forward_exchanges);
  };
  const auto backward_of = [&](const memory::LayerMemory& layer) {
    return waited(layer.backward_pass, layer.backward_kernels, layer.backward_sent,
                  layer.backward_exchanges);
  };
  const auto input_of = [&](const memory::LayerMemory& layer) {
    return waited(layer.input_pass, layer.input_kernels, layer.backward_sent,
                  layer.backward_exchanges);
  };
  const auto add = [&](const memory::LayerMemory& layer, double again, LayerTimes& each) {
    const double forward = forward_of(layer), backward = backward_of(layer);
    const double input = input_of(layer);
    each.forward += forward;
    each.backward += backward;
    each.input += input;
    each.forward_exchange += forward;
    each.backward_exchange += backward;
    each.input_exchange += input;
    each.backward_exchange_again += again;
    each.saved_again += again - (forward + backward);
  };
  for (std::size_t i = 0; i < times.size(); ++i) {
    const memory::LayerMemory& layer = size.memory.layers[i];
    const memory::LayerMemory& again = size.memory.again.empty() ? layer : size.memory.again[i];
    add(layer, forward_of(again) + backward_of(again), times[i]);
  }
  const memory::LayerMemory& loss = size.memory.loss;  // It is not computed again.
  add(loss, backward_of(loss), times.back());
}

namespace {

// An exchange of a layer in one direction.
AxisWait wait_of(const Network& network, const RankGroup& group,
                 const memory::LayerExchange& exchange, double own_bytes, double attention) {
  if (group.ranks == 1) return {};
  const std::int32_t others = group.ranks - 1;
  switch (exchange.way) {
    case memory::ExchangeWay::ByNode:
      return {
          .waited = by_node_time(network, group, own_bytes, static_cast<double>(exchange.copies)),
          .bytes = own_bytes * others / group.ranks};
    case memory::ExchangeWay::AllToAll:
      return {.waited = all_to_all_time(network, group, own_bytes),
              .bytes = own_bytes * others / group.ranks};
    case memory::ExchangeWay::Gather: {
      const LinkSpeed link = network.among(Rank(0), group.last(), group.ranks);
      return {.waited = collective_time(link, group.ranks, own_bytes * group.ranks),
              .bytes = own_bytes * others};
    }
    case memory::ExchangeWay::Ring: {
      const LinkSpeed link = network.among(Rank(0), group.last(), group.ranks);
      const double step = link.latency + (link.bandwidth ? own_bytes / *link.bandwidth : 0.0);
      const double hides = std::min(step, attention / group.ranks);
      return {
          .waited = others * (step - hides), .hidden = others * hides, .bytes = own_bytes * others};
    }
  }
  return {};
}

}  // namespace

void add_axis_exchanges(const Network& network, const AxisGroups& groups,
                        const memory::MeasuredSize& size,
                        const std::optional<devices::DeviceModel>& kernels,
                        std::vector<LayerTimes>& times) {
  const auto attention = [&](const devices::Kernels& pass) {
    return kernels ? devices::seconds_by_kind(pass, *kernels).attention : 0.0;
  };
  for (std::size_t i = 0; i < times.size(); ++i) {
    const memory::LayerMemory& layer = size.memory.layers[i];
    for (const memory::LayerExchange& each : layer.exchanges) {
      const bool is_context = each.group == memory::LayerGroup::Context;
      const RankGroup& group = is_context ? groups.context : groups.experts;
      const auto wait = [&](std::int64_t bytes, std::int64_t count, const devices::Kernels& pass) {
        return static_cast<double>(count) *
               wait_of(network, group, each, static_cast<double>(bytes), attention(pass));
      };
      (is_context ? times[i].context_forward : times[i].experts_forward) +=
          wait(each.forward_bytes, each.forward_count, layer.forward_kernels);
      (is_context ? times[i].context_backward : times[i].experts_backward) +=
          wait(each.backward_bytes, each.backward_count, layer.backward_kernels);
    }
    const double forward = times[i].context_forward.waited + times[i].experts_forward.waited;
    const double backward = times[i].context_backward.waited + times[i].experts_backward.waited;
    times[i].forward += forward;
    times[i].backward += backward;
    times[i].input += backward;
    times[i].forward_exchange += forward;
    times[i].backward_exchange += backward;
    times[i].input_exchange += backward;
    times[i].backward_exchange_again += forward + backward;
  }
}

AxisWait& AxisWait::operator+=(const AxisWait& more) {
  waited += more.waited;
  hidden += more.hidden;
  bytes += more.bytes;
  return *this;
}

AxisWait operator*(double times, const AxisWait& wait) {
  return {
      .waited = times * wait.waited, .hidden = times * wait.hidden, .bytes = times * wait.bytes};
}

bool are_by_layer(const simulate::Costs& costs, std::size_t layers) {
  return layers > 1 && costs.forward.rows().size() == layers;
}

std::vector<LayerTimes> times_of(const simulate::Costs& costs,
                                 const partition::Partition& partition,
                                 const std::vector<double>& operations, double measured,
                                 double microbatch) {
  const simulate::PerStage& forward = costs.forward;
  check_stages(forward, "forward", partition.stages());
  check_stages(costs.input, "input", partition.stages());
  check_stages(costs.weight, "weight", partition.stages());
  if (costs.backward) check_stages(*costs.backward, "backward", partition.stages());
  const double scale = microbatch / measured / 1000.0;
  std::vector<LayerTimes> times;
  for (std::int32_t s = 0; s < partition.stages(); ++s) {
    const StageId stage(s);
    const auto begin = operations.begin() + partition.first_layer(stage);
    const auto end = operations.begin() + partition.end_layer(stage);
    const double all = std::accumulate(begin, end, 0.0);
    const auto layers = static_cast<double>(std::distance(begin, end));
    const double input = of_stage(costs.input, stage);
    const double weight = of_stage(costs.weight, stage);
    const double backward = costs.backward ? of_stage(*costs.backward, stage) : input + weight;
    for (auto layer = begin; layer != end; ++layer) {
      // Layers without a product take what they take: each as much.
      const double share = scale * (all > 0.0 ? *layer / all : 1.0 / layers);
      times.push_back({.forward = share * of_stage(forward, stage),
                       .backward = share * backward,
                       .input = share * input,
                       .weight = share * weight});
    }
  }
  return times;
}

}  // namespace penstock::choose
