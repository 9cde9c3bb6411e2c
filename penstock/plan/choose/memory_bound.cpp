#include "penstock/plan/choose/memory_bound.h"

#include <algorithm>

#include "penstock/plan/choose/planner.h"
#include "penstock/plan/config/optimizer_states.h"
#include "penstock/plan/memory/pipe_memory.h"

namespace penstock::choose {
namespace {

// Whether stages of a rank have a limit together on what stays whole.
bool has_common_limit(const memory::Sharing& sharing) {
  constexpr std::int64_t kNone = partition::PersistenceLimits{}.elements_in_all;
  return sharing.persistence.elements_in_all != kNone;
}

// Other stages of a rank may have a stage's tied parameters.
void leave_tied_to_others(const memory::ModelMemory& model, memory::Earlier& earlier) {
  for (const memory::LayerMemory& layer : model.layers) {
    for (const memory::Parameter& each : layer.parameters) {
      if (each.is_tied) earlier.names.insert(each.name);
    }
  }
}

}  // namespace

memory::Sharing sharing_of(const config::Config& config, const Layout& layout) {
  const config::ZeroConfig& zero = config.zero_optimization;
  partition::PersistenceLimits persistence{.elements = zero.stage3_param_persistence_threshold};
  if (zero.stage3_model_persistence_threshold) {
    persistence.elements_in_all = *zero.stage3_model_persistence_threshold;
  }
  return {.rules = {.stage = layout.zero,
                    .ranks = layout.zero_ranks(),
                    .bucket_bytes = zero.reduce_bucket_size * element_bytes(config),
                    .one_rank_has_pieces = layout.offload == Offload::StatesAndParameters},
          .expert_ranks = layout.expert_zero_ranks(),
          .shards = layout.shards,
          .states_per_element = config::states_per_parameter(config.optimizer),
          .state_bytes_per_part = config::counts_steps(config.optimizer) ? 4 : 0,
          .has_states_in_file = layout.offload != Offload::Nothing,
          .has_pieces_in_file = layout.offload == Offload::StatesAndParameters,
          .persistence = persistence};
}

std::int64_t live_page_bytes_max(const config::Config& config) {
  return config.zero_optimization.stage3_max_live_parameters * element_bytes(config);
}

std::int64_t batch_bytes(const Request& request, const Layout& layout) {
  return layout.microbatch * layout.microbatches * request.layers.sample_bytes / layout.context();
}

MemoryBound::MemoryBound(const Request& request, LayerSizes& sizes)
    : request_(request), sizes_(sizes) {}

// A microbatch is in flight on all stages of a rank when it has passed the last of them.
std::int64_t MemoryBound::least_bytes(const Layout& layout) {
  const BalancedStages& balanced = sizes_.balanced(layout);
  const std::vector<Stage> stages = stages_of(layout, balanced);
  std::int64_t sum = 0, most = 0;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto& [states, kept] = stages[i];
    sum += balanced.kinds[i].count * (states.always + kept);
    if (balanced.kinds[i].first.value >= layout.pipe()) continue;
    most = std::max(most, states.always + kept + whole_pages(states.pages));
  }
  return batch_bytes(request_, layout) + std::max(most, sum / layout.pipe());
}

std::int64_t MemoryBound::least_bytes(const Layout& layout, const InFlight& in_flight) {
  const BalancedStages& balanced = sizes_.balanced(layout);
  const std::vector<Stage> stages = stages_of(layout, balanced);
  std::int64_t fullest = 0;
  for (const InFlight::OfRank& rank : in_flight.ranks) {
    States states;
    std::vector<std::int64_t> kept;
    for (const StageId id : rank.stages) {
      const Stage& stage = stages[balanced.kind_of[id.index()]];
      states.always += stage.states.always;
      states.pages += stage.states.pages;
      kept.push_back(stage.kept);
    }
    std::int64_t most = 0;
    for (const std::vector<std::int32_t>& counts : rank.most) {
      std::int64_t bytes = 0;
      for (std::size_t i = 0; i < kept.size(); ++i) bytes += counts[i] * kept[i];
      most = std::max(most, bytes);
    }
    fullest = std::max(fullest, states.always + whole_pages(states.pages) + most);
  }
  return batch_bytes(request_, layout) + fullest;
}

std::vector<MemoryBound::Stage> MemoryBound::stages_of(const Layout& layout,
                                                       const BalancedStages& stages) {
  std::vector<Stage> all;
  for (const LikeStages& kind : stages.kinds) {
    all.push_back({.states = states_of(layout, stages, kind), .kept = kept(layout, stages, kind)});
  }
  return all;
}

const MemoryBound::States& MemoryBound::states_of(const Layout& layout,
                                                  const BalancedStages& stages,
                                                  const LikeStages& kind) {
  const bool is_alone = layout.stages_per_rank == 1;
  auto [place, is_new] =
      states_.try_emplace({kind.parameters, layout.zero, layout.zero_ranks(),
                           layout.expert_zero_ranks(), layout.offload, is_alone});
  if (!is_new) return place->second;
  const memory::ModelMemory& memory = sizes_.layers_of(layout).memory;
  memory::Sharing sharing = sharing_of(request_.config, layout);
  const bool knows_pages = is_alone || !has_common_limit(sharing);
  if (!knows_pages) sharing.persistence = {};  // Nothing stays, which takes least.
  memory::Earlier earlier(sharing);
  if (!is_alone) leave_tied_to_others(memory, earlier);
  const auto begin = memory.layers.begin();
  const memory::States states = memory::states_of({begin + stages.partition.first_layer(kind.first),
                                                   begin + stages.partition.end_layer(kind.first)},
                                                  sharing, earlier);
  place->second = {.always = states.parameters + states.gradients + states.optimizer,
                   .pages = knows_pages ? states.pages : 0};
  return place->second;
}

std::int64_t MemoryBound::kept(const Layout& layout, const BalancedStages& stages,
                               const LikeStages& kind) {
  const SizedLayers& sized = sizes_.layers_of(layout);
  // What is handed on within a rank may be less than what is let go of for it.
  if (!sized.hands_on_evenly && layout.stages_per_rank > 1) return 0;
  auto [place, is_new] = kept_.try_emplace({kind.all, layout.recompute_interval});
  if (is_new) {
    place->second = memory::kept_bytes(request_.layers.model, sized.memory, stages.partition,
                                       {.interval = layout.recompute_interval,
                                        .layers = request_.config.pipeline.checkpointable_layers},
                                       kind.first);
  }
  return place->second;
}

std::int64_t MemoryBound::whole_pages(std::int64_t pages) const {
  return std::min(pages, live_page_bytes_max(request_.config));
}

}  // namespace penstock::choose
