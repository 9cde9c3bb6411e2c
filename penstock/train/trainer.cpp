#include "penstock/train/trainer.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <span>

#include "penstock/comm/or_fail.h"
#include "penstock/config/learning_rate.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/lower/programs.h"
#include "penstock/train/handshake.h"

namespace penstock::train {
namespace {

StageId stage_of(const partition::Partition& partition, std::int64_t layer) {
  std::int32_t stage = 0;
  while (partition.end_layer(StageId(stage)) <= layer) ++stage;
  return StageId(stage);
}

}  // namespace

lower::ProgramOptions program_of(const TrainerOptions& options) {
  return {.schedule = options.schedule,
          .file = options.program,
          .ranks = options.mesh.pipe,
          .stages_per_rank = options.stages_per_rank,
          .microbatches = options.microbatches};
}

Trainer::Trainer(const TrainerOptions& options, std::vector<nn::LayerSpec> model, nn::Loss loss,
                 comm::Communicator& communicator)
    : options_(options),
      model_(std::move(model)),
      loss_(options.loss_scale.differentiable(options.precision.loss(std::move(loss)))),
      communicator_(communicator),
      progress_(options.progress == nullptr ? own_progress_ : *options.progress),
      mesh_(mesh::make_mesh(communicator.world_size(), options.mesh)),
      activations_(std::make_shared<stage::ActivationCount>()) {
  nn::check_model(model_);
  replicas::check(options_.zero, options_.offload.parameters, options_.sums);
  if (options_.precision.sum_type() != options_.precision.type &&
      options_.sums == GradientSums::Invariant) {
    throw ConfigError("invariant sums of gradients are in the type of the parameters");
  }
  if (std::holds_alternative<partition::ByParameters>(options_.partition)) {
    comm::or_fail(communicator_, [this] { nn::count_parameters(model_); });
  }
  schedule_ = lower::training_program(program_of(options));
  partition_ =
      partition::partition(nn::meta_of(model_), schedule_->schedule().stages, options_.partition);
  {
    const execute::WaitMark wait(progress_, "comparing with the other ranks what they will run");
    agree_on("handshake", facts_of(options_, model_, *schedule_, partition_), communicator_,
             {communicator_.all_ranks()});
  }
  lower::Plan plan = lower_here(*schedule_);
  {
    const execute::WaitMark wait(progress_, "connecting to the other ranks");
    communicator_.link(lower::peers(plan));
    build_groups();
    // A rank that waits hears of one whose layers cannot be made; one that connects to it may not.
    communicator_.barrier("connected");
  }
  {
    const execute::WorkMark work(progress_, "making layers", files_in_programs());
    comm::or_fail(communicator_, [this] { build_stages(); });
  }
  std::vector<std::vector<Rank>> replicas;
  for (std::int32_t pipe = 0; pipe < mesh_.shape().pipe; ++pipe) {
    replicas.push_back(mesh_.data_group(mesh_.rank({.pipe = pipe, .data = 0})));
  }
  {
    const execute::WaitMark wait(progress_, "comparing layers with the other ranks");
    agree_on("layers made", facts_of(stages_), communicator_, replicas);
  }
  replicated_->close();
  build_ties();
  order_.emplace(stages_, std::ssize(model_),
                 [this](const at::Tensor& counts) { sum_over_pipe(counts); });
  train_ = make_executor(std::move(plan), hooks());
  const execute::WorkMark work(progress_, "making masters and optimizer states",
                               execute::Files::Used);
  comm::or_fail(communicator_, [this] { build_optimizer(); });
}

Trainer::~Trainer() = default;

// The next stage's layers move to where their Ownership says, each before the next is made.
stage::Making Trainer::making() {
  stage::Making making{.device = options_.device};
  if (options_.precision.is_short()) making.type = options_.precision.type;
  making.after_layer = [this](const std::vector<nn::ModelParameter>& parameters) {
    progress_.advance();
    for (const nn::ModelParameter& each : parameters) {
      replicated_->add({each.name, each.tensor},
                       each.is_tied ? zero::Ties::Shared : zero::Ties::None);
    }
  };
  return making;
}

void Trainer::build_stages() {
  replicated_.emplace(replicas::ReplicaOptions{.zero = options_.zero,
                                               .pieces = options_.offload.parameters,
                                               .device = options_.device,
                                               .sums = options_.precision.sums,
                                               .order = options_.sums,
                                               .progress = &progress_},
                      *data_group_, communicator_);
  const std::int32_t pipe = mesh_.coordinate(communicator_.rank()).pipe;
  for (std::int32_t s = 0; s < partition_.stages(); ++s) {
    if (schedule_->rank_of(StageId(s)).value != pipe) continue;
    replicated_->begin_set();
    stages_.emplace_back(StageId(s), model_, partition_.first_layer(StageId(s)),
                         partition_.end_layer(StageId(s)), options_.seed, activations_,
                         options_.checkpointing, making());
    replicated_->end_set();
  }
}

void Trainer::build_groups() {
  const Rank rank = communicator_.rank();
  data_group_.emplace(communicator_, mesh_.data_group(rank));
  pipe_group_ = communicator_.make_group(mesh_.pipe_group(rank));
}

// One group of this replica's ranks for each set of them that shares parameters.  Groups have
// numbers, so a rank makes one, of itself, also for a set that it is not in.
void Trainer::build_ties() {
  const mesh::Coordinate here = mesh_.coordinate(communicator_.rank());
  using Pipes = std::set<std::int32_t>;
  const auto pipes_of = [&](const std::vector<std::int64_t>& layers) {
    Pipes pipes;
    for (const std::int64_t layer : layers) {
      pipes.insert(schedule_->rank_of(stage_of(partition_, layer)).value);
    }
    return pipes;
  };
  std::set<Pipes> sets;
  for (const auto& [key, layers] : nn::tied_layers(model_)) sets.insert(pipes_of(layers));
  for (const Pipes& pipes : sets) {
    if (!pipes.contains(here.pipe)) {
      communicator_.make_group({communicator_.rank()});
      continue;
    }
    std::vector<Rank> ranks;
    for (const std::int32_t pipe : pipes) ranks.push_back(mesh_.rank({pipe, here.data}));
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
std::vector<nn::TiedParameter> Trainer::updated_copies(std::size_t stage) const {
  std::vector<nn::TiedParameter> copies;
  for (nn::TiedParameter tied : stages_[stage].tied()) {
    if (!tied.copy.requires_grad()) continue;
    tied.copy = replicated_->part_of(stage, tied.copy);
    if (tied.copy.defined()) copies.push_back(std::move(tied));
  }
  return copies;
}

lower::Plan Trainer::lower_here(const verify::VerifiedSchedule& schedule) const {
  return lower::lower(schedule, partition_, mesh_, communicator_.rank());
}

std::vector<execute::StageHooks*> Trainer::hooks() {
  std::vector<execute::StageHooks*> hooks;
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    hooks.push_back(&replicated_->hooks(s));
  }
  return hooks;
}

std::unique_ptr<execute::Executor> Trainer::make_executor(lower::Plan plan,
                                                          std::vector<execute::StageHooks*> hooks) {
  std::vector<stage::Stage*> chunks;
  for (stage::Stage& stage : stages_) chunks.push_back(&stage);
  return std::make_unique<execute::Executor>(std::move(plan), std::move(chunks), std::move(hooks),
                                             communicator_, progress_);
}

// One that trains nothing: its stages need their parameters all the same.
std::unique_ptr<execute::Executor> Trainer::make_executor(const verify::VerifiedSchedule& forward) {
  const bool come_and_go = replicated_->pager() != nullptr;
  return make_executor(lower_here(forward),
                       come_and_go ? hooks() : std::vector<execute::StageHooks*>{});
}

Microbatches Trainer::cut(const nn::Values& inputs, const nn::Values& targets) const {
  return comm::or_fail(communicator_, [&] {
    Microbatches batch;
    if (is_first_stage()) batch.inputs = split(inputs, options_.microbatches);
    if (is_last_stage()) batch.targets = split(targets, options_.microbatches);
    return batch;
  });
}

void Trainer::sum_over_pipe(const at::Tensor& tensor) {
  communicator_.all_reduce(tensor, pipe_group_)->wait();
}

// What each replica's rank of this stage has, one replica after the other.
std::vector<double> Trainer::over_replicas(const std::vector<double>& mine, const char* phase) {
  const std::int64_t count = std::ssize(mine);
  const at::Tensor all = at::zeros({count * options_.mesh.data}, at::kDouble);
  auto* value = all.data_ptr<double>();
  std::ranges::copy(mine, value + count * mesh_.coordinate(communicator_.rank()).data);
  const execute::WaitMark wait(progress_, phase);
  communicator_.all_reduce(all, data_group_->group())->wait();
  return {value, value + all.numel()};
}

void Trainer::check(const std::vector<Microbatches>& batches) const {
  if (batches.empty()) throw Error("the step has no batch");
  const auto check_count = [&](std::size_t count, const char* what) {
    if (std::cmp_equal(count, options_.microbatches)) return;
    throw Error(str("a batch of the step has ", what, " of ", count,
                    " microbatches, its schedule has ", options_.microbatches));
  };
  for (const Microbatches& batch : batches) {
    if (is_first_stage()) check_count(batch.inputs.size(), "inputs");
    if (is_last_stage()) check_count(batch.targets.size(), "targets");
  }
}

// Of all replicas' microbatches, where their losses are.
std::vector<double> Trainer::weights(const std::vector<Microbatches>& batches) {
  if (!is_last_stage()) return {};
  std::vector<std::vector<double>> of_replica(static_cast<std::size_t>(options_.mesh.data));
  for (const Microbatches& batch : batches) {
    // Messages of one size, whatever the replicas' numbers of batches: each says its own first.
    std::vector<double> mine = {static_cast<double>(batches.size())};
    comm::or_fail(communicator_, [&] {
      for (const nn::Values& targets : batch.targets) {
        mine.push_back(options_.loss_scale.weight(targets));
      }
    });
    const std::vector<double> all = over_replicas(mine, "sharing the weights of microbatches");
    auto next = all.begin();
    for (std::vector<double>& weights : of_replica) {
      comm::or_fail(communicator_, [&] {
        if (*next == mine[0]) return;
        throw Error(str("replica ", &weights - of_replica.data(), " has a step of ", *next,
                        " batches, replica ", mesh_.coordinate(communicator_.rank()).data,
                        " one of ", mine[0]));
      });
      weights.insert(weights.end(), next + 1, next + std::ssize(mine));
      next += std::ssize(mine);
    }
  }
  std::vector<double> all;
  for (const auto& weights : of_replica) all.insert(all.end(), weights.begin(), weights.end());
  return all;
}

// What a program's instructions need may have to come from a file.
execute::Files Trainer::files_in_programs() const {
  return options_.offload.parameters.place == offload::Place::File ? execute::Files::Used
                                                                   : execute::Files::NotUsed;
}

execute::StepResult Trainer::run(execute::Executor& executor, const char* name,
                                 execute::StepInputs inputs) {
  const execute::FilesMark files(progress_, files_in_programs());
  for (nn::Values& each : inputs.inputs) each = options_.precision.inputs(each);
  return replicated_->run(name, [&] { return executor.run(inputs); });
}

// The losses of this replica's microbatches, on the last stage's rank.  Replicas count their
// microbatches one after the other, as one rank would count all of them.
std::vector<double> Trainer::run(const std::vector<Microbatches>& batches,
                                 const std::vector<double>& factors, std::int64_t step) {
  const std::int64_t runs = std::ssize(batches);
  const std::int64_t replica = mesh_.coordinate(communicator_.rank()).data;
  std::vector<double> losses;
  for (std::int64_t run = 0; run < runs; ++run) {
    const Microbatches& batch = batches[static_cast<std::size_t>(run)];
    execute::StepInputs inputs{.inputs = batch.inputs,
                               .targets = batch.targets,
                               .loss = loss_,
                               .step = step,
                               .first_microbatch = (replica * runs + run) * options_.microbatches,
                               .accumulation = run + 1 == runs ? execute::Accumulation::Ends
                                                               : execute::Accumulation::GoesOn};
    if (is_last_stage()) {
      const auto first = factors.begin() + inputs.first_microbatch;
      inputs.loss_factors.assign(first, first + options_.microbatches);
      for (double& factor : inputs.loss_factors) factor *= update_->scale().value();
    }
    const execute::StepResult result = this->run(*train_, "train", inputs);
    for (const at::Tensor& loss : result.losses) {
      if (loss.defined()) losses.push_back(loss.item<double>());
    }
  }
  return losses;
}

// Buffers are those of the first replica.
void Trainer::share_buffers() {
  if (options_.mesh.data == 1) return;
  const execute::WaitMark wait(progress_, "sharing buffers with replicas");
  for (const stage::Stage& stage : stages_) {
    for (const at::Tensor& buffer : stage.buffers()) {
      communicator_.broadcast(buffer, data_group_->group(), /*root=*/0)->wait();
    }
  }
}

// Shares the loss, the gradient norm and the wish to stop; returns the norm.  The squared norms of
// the parameters are added in model order on every rank, whatever the layout: summing them with
// zeros over the pipe is exact.
double Trainer::combine(const std::vector<double>& losses, const std::vector<double>& weights,
                        std::int64_t microbatches, StepReport& report) {
  enum : std::int64_t { kLoss, kBadMicrobatches, kStop, kNorms };
  const at::Tensor shared = at::zeros({kNorms + order_->size()}, at::kDouble);
  auto* value = shared.data_ptr<double>();
  std::vector<double> mine = losses;
  mine.push_back(stop_requested_ ? 1 : 0);
  std::vector<double> all = over_replicas(mine, "sharing the loss");
  for (std::int32_t replica = options_.mesh.data; replica-- > 0;) {
    const auto stop = all.begin() + replica * std::ssize(mine) + std::ssize(losses);
    value[kStop] += *stop;
    all.erase(stop);
  }
  if (is_last_stage()) {
    value[kLoss] = options_.loss_scale.combine(all, weights);
    value[kBadMicrobatches] = static_cast<double>(options_.loss_scale.bad(all, weights));
  }
  const std::span<double> squares(value + kNorms, static_cast<std::size_t>(order_->size()));
  order_->place(replicated_->squared_norms(), squares);
  {
    const execute::WaitMark wait(progress_, "sharing the loss and the gradient norm");
    sum_over_pipe(shared);
  }
  report.loss = value[kLoss];
  report.stop = value[kStop] > 0;
  const double sum = std::accumulate(squares.begin(), squares.end(), 0.0);
  const double norm = std::sqrt(sum) / update_->scale().value();
  if (value[kBadMicrobatches] == 0) return norm;
  constexpr double kOverflow = std::numeric_limits<double>::infinity();  // Wherever it was.
  if (!update_->skips(kOverflow)) {
    throw NumericsError(
        str("step ", report.step, ": the loss of ", value[kBadMicrobatches], " of ", microbatches,
            " microbatches is not finite; the step's is ", shortest(report.loss)),
        {"the weights are as before this step",
         "lower optimizer.params.lr, or set gradient_clipping"});
  }
  return kOverflow;
}

StepReport Trainer::compute_gradients(const nn::Values& inputs, const nn::Values& targets) {
  return compute_gradients({cut(inputs, targets)});
}

StepReport Trainer::compute_gradients(const std::vector<Microbatches>& batches) {
  comm::or_fail(communicator_, [&] { check(batches); });
  StepReport report{.step = steps_taken_ + 1};
  if (options_.precision.gradient_scale.enabled) report.gradient_scale = update_->scale().value();
  progress_.step.store(report.step, std::memory_order_relaxed);
  replicated_->drop_gradients();
  const std::vector<double> weights = this->weights(batches);
  const std::vector<double> factors =
      comm::or_fail(communicator_, [&] { return options_.loss_scale.factors(weights); });
  const std::vector<double> losses = run(batches, factors, report.step);
  const torch::NoGradGuard no_grad;
  {
    const execute::WaitMark wait(progress_, "summing gradients of tied layers");
    for (const auto& tied : ties_) tied->sum_gradients();
  }
  share_buffers();
  const std::int64_t microbatches =
      std::ssize(batches) * options_.microbatches * options_.mesh.data;
  report.grad_norm = combine(losses, weights, microbatches, report);
  report.skipped = update_->skips(report.grad_norm);
  return report;
}

void Trainer::build_optimizer() {
  const bool has_scale = options_.precision.gradient_scale.enabled;
  update_ = std::make_unique<update::Update>(
      parts().all(), std::make_shared<update::GradientScale>(options_.precision.gradient_scale),
      update::UpdateOptions{
          .clipping = options_.gradient_clipping,
          .overflow = has_scale ? update::Overflow::SkipsStep : update::Overflow::Fails,
          .states = options_.offload.states,
          .elements_at_once = options_.offload.elements_at_once,
          .states_per_part = update::states_per_parameter(options_.optimizer)});
  optimizer_ = std::make_unique<update::Optimizer>(options_.optimizer, update_->masters().tensors(),
                                                   update_->memory());
}

void Trainer::update(StepReport& report) {
  report.lr = options_.optimizer.lr * config::learning_rate_share(options_.scheduler,
                                                                  report.step - 1 - skipped_steps(),
                                                                  options_.total_steps);
  if (report.skipped) steps_taken_ = report.step;  // Also where no scale is left to try.
  {
    const execute::WorkMark work(
        progress_, "updating parameters",
        update_->memory() == nullptr ? execute::Files::NotUsed : execute::Files::Used);
    const std::string where = str(" at loss ", shortest(report.loss));
    report.skipped =
        !update_->apply(report.grad_norm, report.step, where, [&](update::PartRun run) {
          optimizer_->step(report.lr, run.first, run.end);
          progress_.advance();
        });
  }
  steps_taken_ = report.step;
  if (!report.skipped) replicated_->gather();
}

std::int64_t Trainer::offloaded_bytes() const {
  return replicated_->file_bytes() + update_->file_bytes();
}

StepReport Trainer::step(const nn::Values& inputs, const nn::Values& targets) {
  return step({cut(inputs, targets)});
}

StepReport Trainer::step(const std::vector<Microbatches>& batches) {
  StepReport report = compute_gradients(batches);
  update(report);
  return report;
}

double Trainer::evaluate(const nn::Values& inputs, const nn::Values& targets) {
  return evaluate(cut(inputs, targets));
}

double Trainer::evaluate(const Microbatches& batch) {
  comm::or_fail(communicator_, [&] { check({batch}); });
  if (!evaluate_) {
    evaluate_ = make_executor(lower::forward_program(*schedule_, options_.microbatches));
  }
  const execute::StepResult result = run(
      *evaluate_, "evaluate", {.inputs = batch.inputs, .targets = batch.targets, .loss = loss_});
  const at::Tensor loss = at::zeros({1}, at::kDouble);
  const std::vector<double> weights = this->weights({batch});
  if (is_last_stage()) {
    std::vector<double> losses;
    for (const at::Tensor& each : result.losses) losses.push_back(each.item<double>());
    const auto all = over_replicas(losses, "sharing the validation loss");
    loss.fill_(options_.loss_scale.combine(all, weights));
  }
  const execute::WaitMark wait(progress_, "sharing the validation loss");
  sum_over_pipe(loss);
  return loss.item<double>();
}

nn::Values Trainer::infer(const nn::Values& inputs) {
  if (!infer_) infer_ = make_executor(lower::forward_program(*schedule_, 1));
  execute::StepInputs step;
  if (is_first_stage()) step.inputs = {inputs};
  return run(*infer_, "infer", step).outputs[0];
}

at::Tensor Trainer::infer(const at::Tensor& input) {
  const nn::Values outputs = infer(nn::Values(input));
  return is_last_stage() ? nn::the_only(outputs, "the output of infer() of a tensor")
                         : at::Tensor();
}

Trainer::WholeParameters::WholeParameters(Trainer& trainer) : trainer_(trainer) {
  trainer_.replicated_->unshard();
}

Trainer::WholeParameters::~WholeParameters() { trainer_.replicated_->reshard(); }

}  // namespace penstock::train
