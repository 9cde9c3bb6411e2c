#include "penstock/plan/choose/sized_layers.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>

#include "penstock/core/check.h"
#include "penstock/plan/choose/planner.h"

namespace penstock::choose {
namespace {

using memory::LayerMemory;
using memory::Parameter;

void drop_kernels(LayerMemory& layer) {
  layer.exchanges.clear();
  layer.forward_kernels = layer.backward_kernels = layer.input_kernels = layer.weight_kernels = {};
  layer.forward_pass = layer.backward_pass = layer.input_pass = {};
}

memory::ModelMemory without_kernels(memory::ModelMemory memory) {
  for (LayerMemory& layer : memory.layers) drop_kernels(layer);
  for (LayerMemory& layer : memory.again) drop_kernels(layer);
  drop_kernels(memory.loss);
  return memory;
}

// Names tell tied parameters alone.
auto numbers_of(const Parameter& each) {
  return std::tuple(each.elements, each.element_bytes, each.type, each.is_trainable, each.is_tied,
                    each.copies, each.sum_element_bytes, each.is_tied ? each.name : std::string());
}

bool have_like_parameters(const LayerMemory& a, const LayerMemory& b) {
  return a.buffers == b.buffers && a.expert_parameters == b.expert_parameters &&
         std::ranges::equal(a.parameters, b.parameters, {}, numbers_of, numbers_of);
}

auto numbers_of(const LayerMemory& each) {
  return std::tuple(each.output, each.input_gradient, each.kept, each.keeps_input,
                    each.keeps_output, each.half_kept, each.half_keeps_input,
                    each.half_keeps_gradient);
}

// What a forward leaves depends on these, and on the layers' types.
bool take_as_much(const memory::ModelMemory& memory, std::size_t a, std::size_t b) {
  const auto same = [&](const std::vector<LayerMemory>& layers) {
    return layers.empty() || numbers_of(layers[a]) == numbers_of(layers[b]);
  };
  return same(memory.layers) && same(memory.again);
}

// Parameters of one name may be judged by the first of them, so that their layers are no two alike.
bool have_names_of_their_own(const std::vector<LayerMemory>& layers) {
  std::set<std::string> names;
  for (const LayerMemory& layer : layers) {
    for (const Parameter& each : layer.parameters) {
      if (!each.is_tied && !names.insert(each.name).second) return false;
    }
  }
  return true;
}

bool hand_on_evenly(const memory::ModelMemory& memory) {
  const std::vector<LayerMemory>& layers = memory.layers;
  for (std::size_t i = 0; i + 1 < layers.size(); ++i) {
    if (layers[i].output > layers[i + 1].input_gradient) return false;
  }
  return true;
}

// The number of a stage of such layers, which may be the last one.
std::int32_t number_of(std::map<std::pair<std::vector<std::int32_t>, bool>, std::int32_t>& kinds,
                       const std::vector<std::int32_t>& layers, std::int64_t first,
                       std::int64_t end) {
  const bool is_last = end == std::ssize(layers);
  const auto number = static_cast<std::int32_t>(kinds.size());
  return kinds.try_emplace({{layers.begin() + first, layers.begin() + end}, is_last}, number)
      .first->second;
}

}  // namespace

LayerSizes::LayerSizes(const Request& request) : request_(request) {}

LayerSizes::Size LayerSizes::size_of(const Layout& layout) {
  return {layout.microbatch, layout.tensor(), layout.context(), layout.experts,
          layout.is_selective};
}

const SizedLayers& LayerSizes::layers_of(const Layout& layout) {
  auto place = sizes_.find(size_of(layout));
  if (place == sizes_.end()) place = sizes_.emplace(size_of(layout), made(layout)).first;
  return place->second;
}

SizedLayers LayerSizes::made(const Layout& layout) {
  const auto& sizes = request_.layers.sizes;
  const auto found = std::ranges::find_if(sizes, [&](const memory::MeasuredSize& size) {
    return size.microbatch == layout.microbatch && size.sharers == layout.tensor() &&
           size.context == layout.context() && size.experts == layout.experts &&
           size.is_selective == layout.is_selective;
  });
  std::optional<memory::MeasuredSize> formed;
  if (found == sizes.end()) {
    PENSTOCK_CHECK(request_.make_size != nullptr);
    formed = request_.make_size(layout);
  }
  const memory::MeasuredSize& size = formed ? *formed : *found;
  SizedLayers sized{.memory = {}, .times = request_.times_of(size)};
  const LinkSpeed& link = request_.network.within(Rank(0), Rank(layout.tensor() - 1));
  add_exchanges(link, size, request_.kernels, sized.times);
  add_axis_exchanges(request_.network,
                     {.context = {.ranks = layout.context(), .apart = layout.tensor()},
                      .experts = {.ranks = layout.experts, .apart = 1}},
                     size, request_.kernels, sized.times);
  sized.memory = without_kernels(size.memory);
  sized.hands_on_evenly = hand_on_evenly(sized.memory);
  number(sized);
  return sized;
}

void LayerSizes::number(SizedLayers& sized) {
  const std::vector<LayerMemory>& layers = sized.memory.layers;
  const bool are_named = have_names_of_their_own(layers);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto known = std::ranges::find_if(
        known_, [&](const LayerMemory& each) { return have_like_parameters(each, layers[i]); });
    const auto number = static_cast<std::int32_t>(known - known_.begin());
    if (known == known_.end()) known_.push_back(layers[i]);
    sized.parameters_alike.push_back(are_named ? number : -1 - numbers_);
    std::size_t like = 0;
    const partition::ModelMeta& model = request_.layers.model;
    while (like < i &&
           (model[like].type != model[i].type || !take_as_much(sized.memory, like, i))) {
      ++like;
    }
    sized.all_alike.push_back(like < i ? sized.all_alike[like] : numbers_);
    ++numbers_;
  }
}

const BalancedStages& LayerSizes::balanced(const Layout& layout) {
  auto [place, is_new] = balanced_.try_emplace({size_of(layout), layout.stages()});
  BalancedStages& stages = place->second;
  if (!is_new) return stages;
  const SizedLayers& sized = layers_of(layout);
  std::vector<double> costs;
  for (const LayerTimes& each : sized.times) costs.push_back(in_all(each));
  stages.partition = partition::partition(request_.layers.model, layout.stages(),
                                          partition::ByCost{std::move(costs)});
  for (std::int32_t s = 0; s < layout.stages(); ++s) {
    const std::int64_t first = stages.partition.first_layer(StageId(s));
    const std::int64_t end = stages.partition.end_layer(StageId(s));
    const std::int32_t parameters =
        number_of(kinds_by_parameters_, sized.parameters_alike, first, end);
    const std::int32_t all = number_of(kinds_by_all_, sized.all_alike, first, end);
    const auto kind = std::ranges::find_if(stages.kinds, [&](const LikeStages& each) {
      return each.parameters == parameters && each.all == all;
    });
    stages.kind_of.push_back(static_cast<std::size_t>(kind - stages.kinds.begin()));
    if (kind == stages.kinds.end()) {
      stages.kinds.push_back({.first = StageId(s), .parameters = parameters, .all = all});
    }
    ++stages.kinds[stages.kind_of.back()].count;
  }
  return stages;
}

}  // namespace penstock::choose
