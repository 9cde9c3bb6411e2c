#include "penstock/plan/memory/pipe_memory.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "penstock/plan/lower/lowering.h"
#include "penstock/plan/lower/places.h"

namespace penstock::memory {
namespace {

std::vector<LayerMemory> layers_of(const ModelMemory& memory, const partition::Partition& partition,
                                   StageId stage) {
  return {memory.layers.begin() + partition.first_layer(stage),
          memory.layers.begin() + partition.end_layer(stage)};
}

StageLayers stage_layers(const partition::ModelMeta& model, const ModelMemory& memory,
                         const partition::Partition& partition,
                         const partition::Recomputation& recomputation, StageId stage) {
  const std::int64_t first = partition.first_layer(stage);
  StageLayers layers{.layers = layers_of(memory, partition, stage)};
  for (const partition::SegmentRange& range :
       partition::segment_ranges(model, first, partition.end_layer(stage), recomputation)) {
    layers.segments.push_back({.first = static_cast<std::size_t>(range.first - first),
                               .end = static_cast<std::size_t>(range.end - first),
                               .is_recomputed = range.is_recomputed});
    if (!range.is_recomputed || memory.again.empty()) continue;
    std::copy(memory.again.begin() + range.first, memory.again.begin() + range.end,
              layers.layers.begin() + (range.first - first));
  }
  if (stage.value + 1 == partition.stages()) layers.loss = memory.loss;
  return layers;
}

std::set<std::string> tied_before(const PipeRun& run, StageId stage) {
  std::set<std::string> names;
  for (std::int64_t layer = 0; layer < run.partition.first_layer(stage); ++layer) {
    for (const Parameter& each : run.memory.layers[static_cast<std::size_t>(layer)].parameters) {
      if (each.is_tied) names.insert(each.name);
    }
  }
  return names;
}

// The number of layers that have the tied parameter which most layers have.
std::int64_t tied_copies(const ModelMemory& memory) {
  std::map<std::string, std::int64_t> copies;
  std::int64_t most = 0;
  for (const LayerMemory& layer : memory.layers) {
    for (const Parameter& each : layer.parameters) {
      if (each.is_tied) most = std::max(most, ++copies[each.name]);
    }
  }
  return most;
}

// What the sums of tied parameters' gradients take: a place for each layer that has one, but one,
// and a flag.
std::int64_t tie_bytes(const ModelMemory& memory, const partition::SharingRules& rules,
                       const std::vector<LayerMemory>& layers) {
  const std::int64_t copies = tied_copies(memory);
  std::set<std::string> seen;
  std::int64_t bytes = 0;
  for (const LayerMemory& layer : layers) {
    for (const Parameter& each : layer.parameters) {
      if (!each.is_tied || !each.is_trainable || !seen.insert(each.name).second) continue;
      const std::int64_t share = rules.are_cut() ? each.elements / rules.ranks : each.elements;
      bytes += ((copies - 1) * share + 1) * each.summed_element_bytes();
    }
  }
  return bytes;
}

// Bytes of the copies' own gradients.
std::int64_t tied_gradient_bytes(const std::vector<LayerMemory>& layers) {
  std::int64_t bytes = 0;
  for (const LayerMemory& layer : layers) {
    for (const Parameter& each : layer.parameters) {
      if (each.is_tied && each.is_trainable) bytes += each.sum_bytes();
    }
  }
  return bytes;
}

// Bytes of gradients in float of the parts that are updated together.
std::int64_t update_bytes(std::int64_t elements_at_once,
                          const std::vector<std::int64_t>& master_gradients) {
  constexpr std::int64_t kElementBytes = 4;
  std::int64_t most = 0;
  for (const partition::PartRun& run :
       partition::part_runs(master_gradients, elements_at_once * kElementBytes)) {
    const auto begin = master_gradients.begin();
    most = std::max(most,
                    std::accumulate(begin + static_cast<std::ptrdiff_t>(run.first),
                                    begin + static_cast<std::ptrdiff_t>(run.end), std::int64_t{0}));
  }
  return most;
}

PipeRank rank_of(const PipeRun& run, const lower::Plan& plan) {
  Standing standing{.in_step = {.batch = run.batch_bytes}};
  std::vector<StageMemory> stages;
  Earlier earlier(run.sharing);
  std::vector<LayerMemory> all;
  std::vector<std::int64_t> master_gradients;
  std::int64_t pages = 0;
  std::int64_t file = 0;
  std::vector<SavedStage> saved;
  const bool are_alike = lower::programs_of(run.schedule) == mesh::Programs::Alike;
  for (const StageId stage : plan.chunks) {
    StageLayers layers =
        stage_layers(run.model, run.memory, run.partition, run.recomputation, stage);
    States states = states_of(layers.layers, run.sharing, earlier);
    standing.always.parameters += states.parameters;
    standing.always.gradients += states.gradients;
    standing.always.optimizer += states.optimizer;
    pages += states.pages;
    file += states.file;
    master_gradients.insert(master_gradients.end(), states.master_gradients.begin(),
                            states.master_gradients.end());
    all.insert(all.end(), layers.layers.begin(), layers.layers.end());
    layers.buckets = std::move(states.buckets);
    if (are_alike) layers.sums_under_way = states.sums_under_way;
    stages.emplace_back(std::move(layers));
    saved.push_back({.ownership = std::move(states.ownership),
                     .buffers = buffer_bytes(layers_of(run.memory, run.partition, stage)),
                     .tied_before = tied_before(run, stage)});
    if (states.expert_ownership)
      saved.push_back({.ownership = std::move(*states.expert_ownership)});
  }
  const std::int64_t copied = run.copies == Copies::Absent ? 0 : copied_bytes(saved, run.sharing);
  if (run.copies == Copies::WithTensors) standing.always.copies = copied;
  standing.always.buckets = tie_bytes(run.memory, run.sharing.rules, all);
  standing.in_step.buckets = std::min(pages, run.live_page_bytes_max);
  standing.update = update_bytes(run.elements_at_once, master_gradients);
  RankMemory memory = rank_memory(plan, stages, standing);
  // After their sum, gradients of copies are views of it.
  if (standing.in_step.buckets == 0 && run.sharing.rules.ranks == 1)
    memory.between_steps.gradients -= tied_gradient_bytes(all);
  std::vector<partition::Ownership> ownership;
  for (SavedStage& each : saved) ownership.push_back(std::move(each.ownership));
  return {.stages = plan.chunks,
          .memory = std::move(memory),
          .file_bytes = file,
          .host_copy_bytes = run.copies == Copies::InHostMemory ? copied : 0,
          .ownership = std::move(ownership)};
}

}  // namespace

std::vector<PipeRank> pipe_memory(const PipeRun& run) {
  const mesh::Mesh mesh = mesh::make_mesh(run.mesh);
  const lower::Lowering lowering(run.schedule, run.partition, mesh);
  const std::vector<lower::Share> shares = lower::shares_of(run.schedule, mesh);
  PipeRun of_rank = run;
  std::vector<PipeRank> ranks;
  for (const Rank rank : mesh.group(Rank(0), mesh::Role::Pipe)) {
    Sharing& sharing = of_rank.sharing;
    const lower::Share& share = shares[ranks.size()];
    sharing.rules.ranks = sharing.shards > 0 ? sharing.shards : share.ranks;
    sharing.place = share.place % sharing.rules.ranks;
    ranks.push_back(rank_of(of_rank, lowering.plan(rank)));
  }
  return ranks;
}

std::int64_t kept_bytes(const partition::ModelMeta& model, const ModelMemory& memory,
                        const partition::Partition& partition,
                        const partition::Recomputation& recomputation, StageId stage) {
  const StageMemory passes(stage_layers(model, memory, partition, recomputation, stage));
  return passes.forward().after.activations;
}

}  // namespace penstock::memory
