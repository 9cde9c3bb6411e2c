#include "penstock/train/rank_model.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <set>

#include "penstock/comm/or_fail.h"
#include "penstock/config/program_of_replicas.h"
#include "penstock/core/text.h"
#include "penstock/lower/places.h"
#include "penstock/stage/value_hash.h"

namespace penstock::train {
namespace {

StageId stage_of(const partition::Partition& partition, std::int64_t layer) {
  std::int32_t stage = 0;
  while (partition.end_layer(StageId(stage)) <= layer) ++stage;
  return StageId(stage);
}

std::int32_t place_of(Rank rank, const std::vector<std::vector<Rank>>& places) {
  const auto has = [rank](const std::vector<Rank>& place) {
    return std::ranges::count(place, rank) > 0;
  };
  return static_cast<std::int32_t>(std::ranges::find_if(places, has) - places.begin());
}

PlaceInRun place_in_run(Rank rank, const mesh::Mesh& mesh,
                        const std::vector<std::vector<Rank>>& places) {
  const std::int32_t place = place_of(rank, places);
  const std::vector<Rank>& copies = places[static_cast<std::size_t>(place)];
  return {.coordinate = mesh.coordinate(rank),
          .replicas = mesh.shape().data,
          .places = static_cast<std::int32_t>(places.size()),
          .place = place,
          .copies = static_cast<std::int32_t>(copies.size()),
          .copy = static_cast<std::int32_t>(std::ranges::find(copies, rank) - copies.begin())};
}

std::vector<std::vector<StageId>> stages_of_rows(const verify::VerifiedSchedule& schedule) {
  return schedule.facts().homes.stages_of_ranks(schedule.schedule().programs.size());
}

}  // namespace

std::set<std::int64_t> layers_of(std::int32_t row, const verify::VerifiedSchedule& schedule,
                                 const partition::Partition& partition) {
  const auto stages_of = stages_of_rows(schedule);
  std::set<std::int64_t> layers;
  for (const StageId stage : stages_of[static_cast<std::size_t>(row)]) {
    for (auto i = partition.first_layer(stage); i < partition.end_layer(stage); ++i) {
      layers.insert(i);
    }
  }
  return layers;
}

RankModel::RankModel(const TrainerOptions& options, const std::vector<nn::LayerSpec>& layers,
                     const Layout& layout, nn::LayerMaker& maker, comm::Communicator& communicator,
                     execute::Progress& progress)
    : options_(options),
      communicator_(communicator),
      progress_(progress),
      places_(lower::places_of(layout.schedule, layout.mesh)),
      here_(place_in_run(communicator.rank(), layout.mesh, places_)),
      of_all_replicas_(layout.schedule.schedule().replicas > 1),
      activations_(std::make_shared<stage::ActivationCount>()),
      owned_(str("rank ", communicator.rank())),
      data_group_(communicator, places_[static_cast<std::size_t>(here_.place)]),
      pipe_group_(communicator.make_group(of_all_replicas_
                                              ? communicator.all_ranks()
                                              : layout.mesh.pipe_group(communicator.rank()))) {
  // A rank that waits hears of one whose layers cannot be made; one that connects to it may not.
  communicator_.barrier("connected");
  std::unique_ptr<replicas::GrowingParameters> grown;
  {
    const execute::WorkMark work(progress_, "making layers", files_in_programs());
    grown = comm::or_fail_at(
        communicator_, [] { return ""; }, [&] { return build_stages(layers, layout, maker); });
  }
  {
    const execute::WaitMark wait(progress_, "comparing layers with the other ranks");
    agree_on(Occasion::Layers, facts_of(stages_, first_values_), communicator_, places_);
    first_values_.clear();
  }
  replicated_.emplace(std::move(grown), communicator_);
  build_ties(layers, layout);
  order_.emplace(stages_, std::ssize(layers),
                 [this](const at::Tensor& counts) { sum_over_pipe(counts); });
}

// The next stage's layers move to where their Ownership says, each before the next is made.
stage::Making RankModel::making(const std::vector<nn::LayerSpec>& layers, nn::LayerMaker& maker,
                                replicas::GrowingParameters& growing) {
  stage::Making making{.device = options_.device, .leaves = stage::Leaves::ParametersOnly};
  making.make = [this, &layers, &maker](std::int64_t index) {
    nn::BuiltLayer built = maker.make(index);
    owned_.claim(layers[static_cast<std::size_t>(index)].meta.name, *built.layer);
    return built;
  };
  if (options_.precision.is_short()) making.type = options_.precision.type;
  making.after_layer = [this, &growing](const std::vector<nn::ModelParameter>& parameters) {
    progress_.advance();
    for (const nn::ModelParameter& each : parameters) {
      // Where its values are all here; add() may take them away.
      if (here_.copies > 1) first_values_[each.name] = stage::hash_of_values(each.tensor);
      growing.add({each.name, each.tensor},
                  each.is_tied ? zero::Ties::Shared : zero::Ties::Unshared);
    }
  };
  return making;
}

std::unique_ptr<replicas::GrowingParameters> RankModel::build_stages(
    const std::vector<nn::LayerSpec>& layers, const Layout& layout, nn::LayerMaker& maker) {
  auto growing = std::make_unique<replicas::GrowingParameters>(
      replicas::ReplicaOptions{.zero = options_.zero,
                               .pieces = options_.offload.parameters,
                               .device = options_.device,
                               .sums = options_.precision.sums,
                               .order = options_.sums,
                               .sums_under_way_max = of_all_replicas_
                                                         ? std::numeric_limits<std::size_t>::max()
                                                         : partition::kSumsUnderWay,
                               .progress = &progress_},
      data_group_);
  const partition::Partition& partition = layout.partition;
  const auto stages_of = stages_of_rows(layout.schedule);
  maker.begin(layers_of(here_.coordinate.pipe, layout.schedule, partition));
  for (const StageId stage : stages_of[static_cast<std::size_t>(here_.coordinate.pipe)]) {
    growing->begin_set();
    stages_.emplace_back(stage, layers, partition.first_layer(stage), partition.end_layer(stage),
                         options_.seed, activations_, options_.checkpointing,
                         making(layers, maker, *growing));
    growing->end_set();
    is_first_stage_ |= stage.value == 0;
    is_last_stage_ |= stage.value + 1 == partition.stages();
  }
  return growing;
}

// One group of ranks for each set of places that shares parameters: those of this replica, or all.
void RankModel::build_ties(const std::vector<nn::LayerSpec>& layers, const Layout& layout) {
  using Places = std::set<std::int32_t>;
  const auto places_of = [&](const std::vector<std::int64_t>& tied) {
    Places places;
    for (const std::int64_t layer : tied) {
      const StageId stage = stage_of(layout.partition, layer);
      const Rank row = layout.schedule.facts().homes.on_way(0, stage.index());
      places.insert(place_of(layout.mesh.rank({.pipe = row.value, .data = 0}), places_));
    }
    return places;
  };
  std::set<Places> sets;
  for (const auto& [key, tied] : nn::tied_layers(layers)) sets.insert(places_of(tied));
  if (of_all_replicas_ && !sets.empty()) {
    config::check_tied_program_of_replicas(options_.zero.stage);
  }
  for (const Places& places : sets) {
    if (!places.contains(here_.place)) continue;
    std::vector<Rank> ranks;
    for (const std::int32_t place : places) {
      const std::vector<Rank>& copies = places_[static_cast<std::size_t>(place)];
      if (of_all_replicas_) {
        ranks.insert(ranks.end(), copies.begin(), copies.end());
      } else {
        ranks.push_back(copies[static_cast<std::size_t>(here_.coordinate.data)]);
      }
    }
    std::ranges::sort(ranks);
    std::vector<nn::TiedParameter> copies;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      for (const nn::TiedParameter& tied : updated_copies(s)) {
        if (places_of(tied.layers) == places) copies.push_back(tied);
      }
    }
    std::ranges::stable_sort(copies, {}, &nn::TiedParameter::name);
    const comm::Group group = communicator_.make_group(ranks);
    const bool is_summand = !of_all_replicas_ || here_.copy == 0;
    ties_.push_back(std::make_unique<execute::TiedParameters>(
        communicator_, group, copies, options_.precision.sums,
        is_summand ? execute::Summand::Mine : execute::Summand::OfAnother));
  }
}

// A stage's copies of tied parameters, as this rank updates them: whole, or its slices.
std::vector<nn::TiedParameter> RankModel::updated_copies(std::size_t stage) const {
  std::vector<nn::TiedParameter> copies;
  for (nn::TiedParameter tied : stages_[stage].layers().tied()) {
    if (!tied.copy.requires_grad()) continue;
    tied.copy = replicated_->part_of(stage, tied.copy);
    if (tied.copy.defined()) copies.push_back(std::move(tied));
  }
  return copies;
}

std::vector<execute::StageHooks*> RankModel::hooks() {
  std::vector<execute::StageHooks*> hooks;
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    hooks.push_back(&replicated_->hooks(s));
  }
  return hooks;
}

std::unique_ptr<execute::Executor> RankModel::make_executor(
    lower::Plan plan, std::vector<execute::StageHooks*> hooks) {
  std::vector<stage::Stage*> chunks;
  for (stage::Stage& stage : stages_) chunks.push_back(&stage);
  return std::make_unique<execute::Executor>(std::move(plan), std::move(chunks), std::move(hooks),
                                             communicator_, progress_);
}

std::unique_ptr<execute::Executor> RankModel::training_executor(lower::Plan plan) {
  return make_executor(std::move(plan), hooks());
}

// Its stages need their parameters all the same.
std::unique_ptr<execute::Executor> RankModel::forward_executor(lower::Plan plan) {
  const bool come_and_go = replicated_->pager() != nullptr;
  return make_executor(std::move(plan),
                       come_and_go ? hooks() : std::vector<execute::StageHooks*>{});
}

// What a program's instructions need may have to come from a file.
execute::Files RankModel::files_in_programs() const {
  return options_.offload.parameters.place == offload::Place::File ? execute::Files::Used
                                                                   : execute::Files::NotUsed;
}

execute::StepResult RankModel::run(execute::Executor& executor, const char* name,
                                   execute::StepInputs inputs) {
  const execute::FilesMark files(progress_, files_in_programs());
  for (nn::Values& each : inputs.inputs) each = options_.precision.inputs(each);
  for (const auto& tie : ties_) tie->share();
  return replicated_->run(name, [&] { return executor.run(inputs); });
}

void RankModel::sum_tied_gradients() {
  const execute::WaitMark wait(progress_, "summing gradients of tied layers");
  for (const auto& tied : ties_) tied->sum_gradients();
}

// Buffers are those of the first copy.
void RankModel::share_buffers() {
  if (here_.copies == 1) return;
  const execute::WaitMark wait(progress_, "sharing buffers with replicas");
  for (const stage::Stage& stage : stages_) {
    for (const at::Tensor& buffer : stage.layers().buffers()) {
      communicator_.broadcast(buffer, data_group_.group(), /*root=*/0)->wait();
    }
  }
}

std::vector<double> RankModel::squared_norms() {
  std::vector<double> all(static_cast<std::size_t>(order_->size()), 0.0);
  order_->place(replicated_->squared_norms(), all);
  return all;
}

void RankModel::sum_over_pipe(const at::Tensor& tensor) {
  if (of_all_replicas_ && here_.copy > 0) tensor.zero_();
  communicator_.all_reduce(tensor, pipe_group_)->wait();
}

std::vector<double> RankModel::sum_over_copies(const std::vector<double>& mine, const char* phase) {
  if (here_.copies == 1) return mine;
  const at::Tensor sums = at::zeros({std::ssize(mine)}, at::kDouble);
  auto* value = sums.data_ptr<double>();
  std::ranges::copy(mine, value);
  const execute::WaitMark wait(progress_, phase);
  communicator_.all_reduce(sums, data_group_.group())->wait();
  return {value, value + sums.numel()};
}

RankModel::WholeParameters::WholeParameters(replicas::ReplicatedParameters& replicated)
    : replicated_(replicated) {
  replicated_.unshard();
}

RankModel::WholeParameters::~WholeParameters() { replicated_.reshard(); }

std::vector<double> over_replicas(RankModel& here, const std::vector<double>& mine,
                                  const char* phase) {
  const PlaceInRun& place = here.place();
  if (place.replicas == 1) return mine;
  std::vector<double> all(mine.size() * static_cast<std::size_t>(place.replicas), 0.0);
  std::ranges::copy(mine, all.begin() + std::ssize(mine) * place.coordinate.data);
  return here.sum_over_copies(all, phase);
}

}  // namespace penstock::train
