#include "penstock/run/run_memory.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "penstock/lower/plan.h"
#include "penstock/lower/programs.h"
#include "penstock/memory/states.h"
#include "penstock/probe/layer_probe.h"
#include "penstock/stage/segment_ranges.h"
#include "penstock/update/part_runs.h"

namespace penstock::run {
namespace {

using memory::LayerMemory;
using memory::StageMemory;

memory::Sharing sharing_of(const train::TrainerOptions& options) {
  const bool counts_steps = options.optimizer.type != config::OptimizerType::Sgd;
  return {.rules = sharing_rules(options.zero, options.offload.parameters, options.mesh.data,
                                 options.device),
          .states_per_element = update::states_per_parameter(options.optimizer),
          .state_bytes_per_part = counts_steps ? static_cast<std::int64_t>(sizeof(float)) : 0,
          .has_states_in_file = options.offload.states.place == offload::Place::File,
          .has_pieces_in_file = options.offload.parameters.place == offload::Place::File,
          .persistence = options.zero.persistence};
}

// All that ranks of the pipe axis have in common.
struct Planned {
  const train::TrainerOptions& options;
  std::vector<nn::LayerSpec> model;
  verify::VerifiedSchedule schedule;
  partition::Partition partition;
  mesh::Mesh mesh;
  probe::ModelMemory layers;
};

probe::ModelMemory probe_layers(const train::TrainerOptions& options,
                                const std::vector<nn::LayerSpec>& model, const nn::Loss& loss,
                                const TrainingInputs& inputs) {
  const train::Precision& precision = options.precision;
  probe::ModelMemory memory =
      probe::probe_model(model, precision.inputs(inputs.inputs), inputs.targets,
                         precision.loss(loss), options.seed, precision.type);
  for (LayerMemory& layer : memory.layers) {
    for (memory::Parameter& each : layer.parameters) {
      each.sum_element_bytes = static_cast<std::int64_t>(c10::elementSize(precision.sum_type()));
    }
  }
  return memory;
}

Planned plan_run(const train::TrainerOptions& options, std::vector<nn::LayerSpec> model,
                 const nn::Loss& loss, const TrainingInputs& inputs) {
  nn::check_model(model);
  nn::count_parameters(model);
  verify::VerifiedSchedule schedule = lower::training_program(train::program_of(options));
  partition::Partition partition =
      partition::partition(nn::meta_of(model), schedule.schedule().stages, options.partition);
  probe::ModelMemory layers = probe_layers(options, model, loss, inputs);
  return {options,
          std::move(model),
          std::move(schedule),
          std::move(partition),
          mesh::make_mesh(options.mesh.pipe * options.mesh.data, options.mesh),
          std::move(layers)};
}

memory::StageLayers layers_of(const Planned& planned, StageId stage) {
  const std::int64_t first = planned.partition.first_layer(stage);
  const std::int64_t end = planned.partition.end_layer(stage);
  memory::StageLayers layers;
  layers.layers.assign(planned.layers.layers.begin() + first, planned.layers.layers.begin() + end);
  for (const stage::SegmentRange& range :
       stage::segment_ranges(planned.model, first, end, planned.options.checkpointing)) {
    layers.segments.push_back({.first = static_cast<std::size_t>(range.first - first),
                               .end = static_cast<std::size_t>(range.end - first),
                               .is_recomputed = range.is_recomputed});
  }
  if (stage.value + 1 == planned.partition.stages()) layers.loss = planned.layers.loss;
  return layers;
}

// What the sums of tied parameters' gradients take: a place for each layer that has one, but one,
// and a flag.
std::int64_t tie_bytes(const Planned& planned, const partition::SharingRules& rules,
                       const std::vector<LayerMemory>& layers) {
  const auto tied = nn::tied_layers(planned.model);
  std::int64_t copies = 0;
  for (const auto& [key, numbers] : tied) copies = std::max(copies, std::ssize(numbers));
  std::set<std::string> seen;
  std::int64_t bytes = 0;
  for (const LayerMemory& layer : layers) {
    for (const memory::Parameter& each : layer.parameters) {
      if (!each.is_tied || !each.is_trainable || !seen.insert(each.name).second) continue;
      const std::int64_t share = rules.are_cut() ? each.elements / rules.ranks : each.elements;
      bytes += ((copies - 1) * share + 1) * each.summed_element_bytes();
    }
  }
  return bytes;
}

// Of the copies' own gradients.
std::int64_t tied_gradient_bytes(const std::vector<LayerMemory>& layers) {
  std::int64_t bytes = 0;
  for (const LayerMemory& layer : layers) {
    for (const memory::Parameter& each : layer.parameters) {
      if (each.is_tied && each.is_trainable) bytes += each.sum_bytes();
    }
  }
  return bytes;
}

// Of gradients in float of the parts that are updated together.
std::int64_t update_bytes(const train::OffloadOptions& offload,
                          const std::vector<std::int64_t>& master_gradients) {
  constexpr std::int64_t kElementBytes = 4;
  std::int64_t most = 0;
  for (const update::PartRun& run :
       update::part_runs(master_gradients, offload.elements_at_once * kElementBytes)) {
    const auto begin = master_gradients.begin();
    most = std::max(most,
                    std::accumulate(begin + static_cast<std::ptrdiff_t>(run.first),
                                    begin + static_cast<std::ptrdiff_t>(run.end), std::int64_t{0}));
  }
  return most;
}

PipeRank rank_of(const Planned& planned, std::int32_t pipe, std::int64_t batch_bytes) {
  const lower::Plan plan = lower::lower(planned.schedule, planned.partition, planned.mesh,
                                        planned.mesh.rank({.pipe = pipe, .data = 0}));
  memory::Standing standing{.in_step = {.batch = batch_bytes}};
  std::vector<StageMemory> stages;
  const memory::Sharing sharing = sharing_of(planned.options);
  memory::Earlier earlier(sharing);
  std::vector<LayerMemory> all;
  std::vector<std::int64_t> master_gradients;
  std::int64_t pages = 0;
  std::int64_t file = 0;
  std::vector<partition::Ownership> ownership;
  for (const StageId stage : plan.chunks) {
    memory::StageLayers layers = layers_of(planned, stage);
    memory::States states = memory::states_of(layers.layers, sharing, earlier);
    standing.always.parameters += states.parameters;
    standing.always.gradients += states.gradients;
    standing.always.optimizer += states.optimizer;
    pages += states.pages;
    file += states.file;
    master_gradients.insert(master_gradients.end(), states.master_gradients.begin(),
                            states.master_gradients.end());
    all.insert(all.end(), layers.layers.begin(), layers.layers.end());
    layers.buckets = std::move(states.buckets);
    layers.sums_under_way = states.sums_under_way;
    stages.emplace_back(std::move(layers));
    ownership.push_back(std::move(states.ownership));
  }
  standing.always.buckets = tie_bytes(planned, sharing.rules, all);
  standing.in_step.buckets = std::min(pages, planned.options.zero.limits.budget_bytes);
  standing.update = update_bytes(planned.options.offload, master_gradients);
  memory::RankMemory memory = memory::rank_memory(plan, stages, standing);
  // After their sum, gradients of copies are views of it.
  if (standing.in_step.buckets == 0 && planned.options.mesh.data == 1)
    memory.between_steps.gradients -= tied_gradient_bytes(all);
  return {.stages = plan.chunks,
          .memory = std::move(memory),
          .file_bytes = file,
          .ownership = std::move(ownership)};
}

}  // namespace

std::vector<PipeRank> run_memory(const train::TrainerOptions& options,
                                 std::vector<nn::LayerSpec> model, const nn::Loss& loss,
                                 const TrainingInputs& inputs) {
  const Planned planned = plan_run(options, std::move(model), loss, inputs);
  std::vector<PipeRank> ranks;
  for (std::int32_t pipe = 0; pipe < options.mesh.pipe; ++pipe) {
    ranks.push_back(rank_of(planned, pipe, inputs.batch_bytes));
  }
  return ranks;
}

}  // namespace penstock::run
