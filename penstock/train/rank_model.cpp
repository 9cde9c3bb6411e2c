#include "penstock/train/rank_model.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <set>

#include "penstock/comm/or_fail.h"
#include "penstock/train/handshake.h"

namespace penstock::train {
namespace {

StageId stage_of(const partition::Partition& partition, std::int64_t layer) {
  std::int32_t stage = 0;
  while (partition.end_layer(StageId(stage)) <= layer) ++stage;
  return StageId(stage);
}

}  // namespace

RankModel::RankModel(const TrainerOptions& options, const std::vector<nn::LayerSpec>& layers,
                     const Layout& layout, comm::Communicator& communicator,
                     execute::Progress& progress)
    : options_(options),
      communicator_(communicator),
      progress_(progress),
      here_(layout.mesh.coordinate(communicator.rank())),
      activations_(std::make_shared<stage::ActivationCount>()),
      data_group_(communicator, layout.mesh.data_group(communicator.rank())),
      pipe_group_(communicator.make_group(layout.mesh.pipe_group(communicator.rank()))) {
  // A rank that waits hears of one whose layers cannot be made; one that connects to it may not.
  communicator_.barrier("connected");
  std::unique_ptr<replicas::GrowingParameters> grown;
  {
    const execute::WorkMark work(progress_, "making layers", files_in_programs());
    grown = comm::or_fail(communicator_, [&] { return build_stages(layers, layout); });
  }
  std::vector<std::vector<Rank>> replicas;
  for (std::int32_t pipe = 0; pipe < layout.mesh.shape().pipe; ++pipe) {
    replicas.push_back(layout.mesh.data_group(layout.mesh.rank({.pipe = pipe, .data = 0})));
  }
  {
    const execute::WaitMark wait(progress_, "comparing layers with the other ranks");
    agree_on("layers made", facts_of(stages_), communicator_, replicas);
  }
  replicated_.emplace(std::move(grown), communicator_);
  build_ties(layers, layout);
  order_.emplace(stages_, std::ssize(layers),
                 [this](const at::Tensor& counts) { sum_over_pipe(counts); });
}

// The next stage's layers move to where their Ownership says, each before the next is made.
stage::Making RankModel::making(replicas::GrowingParameters& growing) {
  stage::Making making{.device = options_.device};
  if (options_.precision.is_short()) making.type = options_.precision.type;
  making.after_layer = [this, &growing](const std::vector<nn::ModelParameter>& parameters) {
    progress_.advance();
    for (const nn::ModelParameter& each : parameters) {
      growing.add({each.name, each.tensor}, each.is_tied ? zero::Ties::Shared : zero::Ties::None);
    }
  };
  return making;
}

std::unique_ptr<replicas::GrowingParameters> RankModel::build_stages(
    const std::vector<nn::LayerSpec>& layers, const Layout& layout) {
  auto growing = std::make_unique<replicas::GrowingParameters>(
      replicas::ReplicaOptions{.zero = options_.zero,
                               .pieces = options_.offload.parameters,
                               .device = options_.device,
                               .sums = options_.precision.sums,
                               .order = options_.sums,
                               .progress = &progress_},
      data_group_);
  const partition::Partition& partition = layout.partition;
  for (std::int32_t s = 0; s < partition.stages(); ++s) {
    if (layout.schedule.rank_of(StageId(s)).value != here_.pipe) continue;
    growing->begin_set();
    stages_.emplace_back(StageId(s), layers, partition.first_layer(StageId(s)),
                         partition.end_layer(StageId(s)), options_.seed, activations_,
                         options_.checkpointing, making(*growing));
    growing->end_set();
    is_first_stage_ |= s == 0;
    is_last_stage_ |= s + 1 == partition.stages();
  }
  return growing;
}

// One group of this replica's ranks for each set of them that shares parameters.  Groups have
// numbers, so a rank makes one, of itself, also for a set that it is not in.
void RankModel::build_ties(const std::vector<nn::LayerSpec>& layers, const Layout& layout) {
  using Pipes = std::set<std::int32_t>;
  const auto pipes_of = [&](const std::vector<std::int64_t>& tied) {
    Pipes pipes;
    for (const std::int64_t layer : tied) {
      pipes.insert(layout.schedule.rank_of(stage_of(layout.partition, layer)).value);
    }
    return pipes;
  };
  std::set<Pipes> sets;
  for (const auto& [key, tied] : nn::tied_layers(layers)) sets.insert(pipes_of(tied));
  for (const Pipes& pipes : sets) {
    if (!pipes.contains(here_.pipe)) {
      communicator_.make_group({communicator_.rank()});
      continue;
    }
    std::vector<Rank> ranks;
    for (const std::int32_t pipe : pipes) ranks.push_back(layout.mesh.rank({pipe, here_.data}));
    std::vector<nn::TiedParameter> copies;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      for (const nn::TiedParameter& tied : updated_copies(s)) {
        if (pipes_of(tied.layers) == pipes) copies.push_back(tied);
      }
    }
    std::ranges::stable_sort(copies, {}, &nn::TiedParameter::name);
    const comm::Group group = communicator_.make_group(ranks);
    ties_.push_back(std::make_unique<execute::TiedParameters>(communicator_, group, copies,
                                                              options_.precision.sums));
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
  return replicated_->run(name, [&] { return executor.run(inputs); });
}

void RankModel::sum_tied_gradients() {
  const execute::WaitMark wait(progress_, "summing gradients of tied layers");
  for (const auto& tied : ties_) tied->sum_gradients();
}

// Buffers are those of the first replica.
void RankModel::share_buffers() {
  if (options_.mesh.data == 1) return;
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
  communicator_.all_reduce(tensor, pipe_group_)->wait();
}

// What each replica's rank of this stage has, one replica after the other.
std::vector<double> RankModel::over_replicas(const std::vector<double>& mine, const char* phase) {
  const std::int64_t count = std::ssize(mine);
  const at::Tensor all = at::zeros({count * options_.mesh.data}, at::kDouble);
  auto* value = all.data_ptr<double>();
  std::ranges::copy(mine, value + count * here_.data);
  const execute::WaitMark wait(progress_, phase);
  communicator_.all_reduce(all, data_group_.group())->wait();
  return {value, value + all.numel()};
}

RankModel::WholeParameters::WholeParameters(replicas::ReplicatedParameters& replicated)
    : replicated_(replicated) {
  replicated_.unshard();
}

RankModel::WholeParameters::~WholeParameters() { replicated_.reshard(); }

}  // namespace penstock::train
