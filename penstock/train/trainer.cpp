#include "penstock/train/trainer.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

#include "penstock/comm/calls.h"
#include "penstock/comm/or_fail.h"
#include "penstock/config/learning_rate.h"
#include "penstock/config/optimizer_states.h"
#include "penstock/config/program_of_replicas.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/lower/programs.h"
#include "penstock/nn/loss_layer.h"
#include "penstock/train/handshake.h"
#include "penstock/train/layer_sizes.h"

namespace penstock::train {

lower::ProgramOptions program_of(const TrainerOptions& options) {
  return {.schedule = options.schedule,
          .file = options.program,
          .ranks = options.mesh.pipe,
          .stages_per_rank = options.stages_per_rank,
          .microbatches = options.microbatches};
}

namespace {

// A loss that is a layer is of the last stage, whatever the method makes of the others.
partition::Partition partition_of(const std::vector<nn::LayerSpec>& layers, std::int32_t stages,
                                  const partition::Method& method) {
  partition::ModelMeta in_line = nn::meta_of(layers);
  in_line.resize(static_cast<std::size_t>(nn::layers_in_line(layers)));
  partition::Partition partition = partition::partition(in_line, stages, method);
  partition.bounds.back() = std::ssize(layers);
  return partition;
}

// Who has which layer, if stages have as many layers each.
std::vector<Rank> likely_ranks(const std::vector<nn::LayerSpec>& layers, const mesh::Mesh& mesh,
                               const verify::VerifiedSchedule& schedule) {
  const std::int32_t stages = schedule.schedule().stages;
  const partition::Partition even = partition_of(layers, stages, partition::Uniform{});
  std::vector<Rank> ranks;
  for (std::int32_t stage = 0; stage < stages; ++stage) {
    const Rank row = schedule.facts().homes.on_way(0, StageId(stage).index());
    ranks.resize(static_cast<std::size_t>(even.end_layer(StageId(stage))),
                 mesh.rank({.pipe = row.value, .data = 0}));
  }
  return ranks;
}

// Whether parameters stay as they are made, so that it costs no memory to make them early.
bool keeps_what_is_made(const TrainerOptions& options) {
  const partition::SharingRules rules = replicas::sharing_rules(
      options.zero, options.offload.parameters, options.mesh.data, options.device);
  return options.device.is_cpu() && !options.precision.is_short() && !rules.come_and_go();
}

// Collective over all ranks, which have the same of everything afterwards.  Layers may have to be
// made to be counted, which `layers` then are.
Layout make_layout(const TrainerOptions& options, std::vector<nn::LayerSpec>& layers,
                   nn::LayerMaker& maker, comm::Communicator& communicator,
                   execute::Progress& progress) {
  const comm::Call call("Trainer()");
  mesh::Mesh mesh = mesh::make_mesh(communicator.world_size(), options.mesh);
  nn::check_model(layers);
  replicas::check(options.zero, options.offload.parameters, options.sums);
  if (options.precision.sum_type() != options.precision.type &&
      options.sums == GradientSums::Invariant) {
    throw ConfigError("invariant sums of gradients are in the type of the parameters");
  }
  verify::VerifiedSchedule schedule = lower::training_program(program_of(options));
  if (schedule.schedule().replicas > 1) {
    config::check_program_of_replicas(options.zero.stage, options.sums == GradientSums::Invariant);
  }
  const std::int32_t stages = schedule.schedule().stages;
  const bool has_to_count = stages > 1 && !are_counted(layers) &&
                            std::holds_alternative<partition::ByParameters>(options.partition);
  const auto cut_into_stages = [&] { return partition_of(layers, stages, options.partition); };
  std::optional<partition::Partition> partition;
  if (!has_to_count) partition = cut_into_stages();
  {
    const execute::WaitMark wait(progress, "comparing with the other ranks what they will run");
    agree_on(Occasion::Trainer, facts_of(options, layers, schedule, partition), communicator);
  }
  if (has_to_count) {
    const execute::WorkMark work(progress, "counting the parameters of layers");
    const auto after = keeps_what_is_made(options) ? nn::AfterCount::Keep : nn::AfterCount::Drop;
    count_together(layers, likely_ranks(layers, mesh, schedule), maker, after, communicator);
    partition = cut_into_stages();
  }
  return {std::move(mesh), std::move(schedule), std::move(*partition)};
}

std::unique_ptr<update::Update> make_update(const TrainerOptions& options,
                                            const update::Parts& parts) {
  const config::Fp16Config& scale = options.precision.gradient_scale;
  return std::make_unique<update::Update>(
      parts.all(), std::make_shared<update::GradientScale>(scale),
      update::UpdateOptions{
          .clipping = options.gradient_clipping,
          .overflow = scale.enabled ? update::Overflow::SkipsStep : update::Overflow::Fails,
          .states = options.offload.states,
          .elements_at_once = options.offload.elements_at_once,
          .states_per_part = config::states_per_parameter(options.optimizer)});
}

// By part: whose it is.
std::vector<std::string> names_of_parts(const replicas::ReplicatedParameters& replicated) {
  std::vector<std::string> names;
  for (const auto& set : replicated.kept()) {
    for (const replicas::KeptParameter& each : set) {
      if (!each.part) continue;
      if (names.size() <= *each.part) names.resize(*each.part + 1);
      names[*each.part] = each.parameter.name;
    }
  }
  return names;
}

// Collective.  Throws: ConfigError, on every rank, for a group that has no parameter of the model.
void check_groups(const config::OptimizerConfig& optimizer, RankModel& here) {
  if (optimizer.groups.empty()) return;
  const config::GroupsByName groups(optimizer);
  const at::Tensor counts = at::zeros({static_cast<std::int64_t>(groups.size())}, at::kLong);
  auto* const count = counts.data_ptr<std::int64_t>();
  for (const auto& [name, tensor] : here.parameters()) ++count[groups.group_of(name)];
  here.sum_over_pipe(counts);
  for (std::size_t i = 1; i < groups.size(); ++i) {
    if (count[i] > 0) continue;
    throw ConfigError(str("optimizer.groups[", i - 1,
                          "].parameters = ", in_quotes(optimizer.groups[i - 1].parameters),
                          ": is found in no parameter's name that an earlier group has not"));
  }
}

// REQUIRES: this rank has the last stage.
std::shared_ptr<nn::Layer> last_layer(RankModel& here) {
  const auto last = std::ranges::max_element(
      here.stages(), {}, [](const stage::Stage& stage) { return stage.id().value; });
  return last->layers().all().back();
}

// This rank's part of a batch, cut into the schedule's microbatches.
Microbatches cut(const nn::Values& inputs, const nn::Values& targets, std::int32_t microbatches,
                 const RankModel& here, comm::Communicator& communicator) {
  return comm::or_fail(communicator, [&] {
    Microbatches batch;
    if (here.is_first_stage()) batch.inputs = split(inputs, microbatches);
    if (here.is_last_stage()) batch.targets = split(targets, microbatches);
    return batch;
  });
}

// At their microbatches' places among those of the step.
void put_losses(const execute::StepResult& result, std::int64_t first,
                std::vector<double>& losses) {
  for (std::size_t m = 0; m < result.losses.size(); ++m) {
    const at::Tensor& loss = result.losses[m];
    if (loss.defined()) losses[static_cast<std::size_t>(first) + m] = loss.item<double>();
  }
}

void check(const std::vector<Microbatches>& batches, std::int32_t microbatches,
           const RankModel& here, comm::Communicator& communicator) {
  const auto check_count = [&](std::size_t count, const char* what) {
    if (std::cmp_equal(count, microbatches)) return;
    throw Error(str("a batch of the step has ", what, " of ", count,
                    " microbatches, its schedule has ", microbatches));
  };
  comm::or_fail(communicator, [&] {
    if (batches.empty()) throw Error("the step has no batch");
    for (const Microbatches& batch : batches) {
      if (here.is_first_stage()) check_count(batch.inputs.size(), "inputs");
      if (here.is_last_stage()) check_count(batch.targets.size(), "targets");
    }
  });
}

// Of the step, on all replicas.
std::int64_t microbatches_of(const std::vector<Microbatches>& batches,
                             const TrainerOptions& options) {
  return std::ssize(batches) * options.microbatches * options.mesh.data;
}

// Parameters that a program has given other memory train on with what they are now.
void take_over(RankModel& here, update::Update& update, comm::Communicator& communicator) {
  const bool any = comm::or_fail(communicator, [&] { return here.replicated().take_over(); });
  if (any) update.take_changes_next();
}

}  // namespace

struct Trainer::Fixed {
  Fixed(const TrainerOptions& given, std::vector<nn::LayerSpec> specs,
        comm::Communicator& communicator)
      : options(given),
        layers(std::move(specs)),
        maker(std::make_unique<nn::LayerMaker>(layers, options.seed)),
        layout(make_layout(options, layers, *maker, communicator,
                           options.progress == nullptr ? progress : *options.progress)) {}

  TrainerOptions options;
  std::vector<nn::LayerSpec> layers;
  execute::Progress progress;
  std::unique_ptr<nn::LayerMaker> maker;  // While the Trainer is made.
  Layout layout;
};

Trainer::Trainer(const TrainerOptions& options, std::vector<nn::LayerSpec> layers, nn::Loss loss,
                 comm::Communicator& communicator)
    : fixed_(
          std::make_unique<Fixed>(options, nn::with_loss(std::move(layers), loss), communicator)),
      options_(fixed_->options),
      layers_(fixed_->layers),
      communicator_(communicator),
      progress_(options.progress == nullptr ? fixed_->progress : *options.progress),
      layout_(fixed_->layout) {
  const comm::Call call("Trainer()");
  lower::Plan plan = lower_here(layout_, layout_.schedule, communicator_);
  {
    const execute::WaitMark wait(progress_, "connecting to the other ranks");
    communicator_.link(lower::peers(plan));
  }
  rank_model_ = std::make_unique<RankModel>(options_, layers_, layout_, *fixed_->maker,
                                            communicator_, progress_);
  if (layout_.partition.stages() == 1) {
    for (const auto& [layer, elements] : fixed_->maker->trainable_elements()) {
      fixed_->layers[static_cast<std::size_t>(layer)].meta.parameters = elements;
    }
  }
  fixed_->maker.reset();
  if (loss.is_of_module() && rank_model_->is_last_stage()) {
    loss = nn::loss_of(last_layer(*rank_model_), loss);
  }
  loss_ = options_.loss_scale.differentiable(options_.precision.loss(std::move(loss)));
  program_ = std::make_unique<TrainingProgram>(std::move(plan), layout_, *rank_model_,
                                               options_.sums, communicator_, progress_);
  const execute::WorkMark work(progress_, "making masters and optimizer states",
                               execute::Files::Used);
  comm::or_fail(communicator_, [this] {
    update_ = make_update(options_, rank_model_->replicated().parts());
    optimizer_ = std::make_unique<update::Optimizer>(
        options_.optimizer, update_->masters().tensors(), update_->memory(),
        names_of_parts(rank_model_->replicated()));
  });
  check_groups(options_.optimizer, *rank_model_);
}

Trainer::~Trainer() = default;

Trainer::Trainer(Trainer&& other) noexcept = default;

Trainer& Trainer::operator=(Trainer&& other) noexcept {
  if (this == &other) return *this;
  std::destroy_at(this);
  return *std::construct_at(this, std::move(other));
}

// Of all replicas' microbatches, where their losses are.
std::vector<double> Trainer::weights(const std::vector<Microbatches>& batches) {
  if (!rank_model_->is_last_stage()) return {};
  std::vector<std::vector<double>> of_replica(static_cast<std::size_t>(options_.mesh.data));
  for (const Microbatches& batch : batches) {
    // Messages of one size, whatever the replicas' numbers of batches: each says its own first.
    std::vector<double> mine = {static_cast<double>(batches.size())};
    comm::or_fail(communicator_, [&] {
      for (const nn::Values& targets : batch.targets) {
        mine.push_back(options_.loss_scale.weight(targets));
      }
    });
    const std::vector<double> all =
        over_replicas(*rank_model_, mine, "sharing the weights of microbatches");
    auto next = all.begin();
    for (std::vector<double>& weights : of_replica) {
      comm::or_fail(communicator_, [&] {
        if (*next == mine[0]) return;
        throw Error(str("replica ", &weights - of_replica.data(), " has a step of ", *next,
                        " batches, replica ", rank_model_->place().coordinate.data, " one of ",
                        mine[0]));
      });
      weights.insert(weights.end(), next + 1, next + std::ssize(mine));
      next += std::ssize(mine);
    }
  }
  std::vector<double> all;
  for (const auto& weights : of_replica) all.insert(all.end(), weights.begin(), weights.end());
  return all;
}

// The losses of all microbatches of the step, on the last stage's ranks; 0 for those of other
// ranks.  Replicas count their microbatches one after the other, as one rank would count all of
// them.
std::vector<double> Trainer::run(const std::vector<Microbatches>& batches,
                                 const std::vector<double>& factors, std::int64_t step) {
  const std::int64_t runs = std::ssize(batches);
  const std::int64_t replica = rank_model_->place().coordinate.data;
  std::vector<double> losses(rank_model_->is_last_stage() ? factors.size() : 0, 0.0);
  for (std::int64_t run = 0; run < runs; ++run) {
    const Microbatches& batch = batches[static_cast<std::size_t>(run)];
    execute::StepInputs inputs{
        .inputs = batch.inputs,
        .targets = batch.targets,
        .loss = loss_,
        .gradient_divisor = options_.loss_scale.divisor(microbatches_of(batches, options_)),
        .place = {.step = step, .microbatch = (replica * runs + run) * options_.microbatches},
        .accumulation =
            run + 1 == runs ? execute::Accumulation::Ends : execute::Accumulation::GoesOn};
    if (rank_model_->is_last_stage()) {
      const auto first = factors.begin() + inputs.place.microbatch;
      inputs.loss_factors.assign(first, first + options_.microbatches);
      for (double& factor : inputs.loss_factors) factor *= update_->scale().value();
    }
    const execute::StepResult result =
        rank_model_->run(program_->executor(), program_->name().c_str(), inputs);
    put_losses(result, inputs.place.microbatch, losses);
  }
  return losses;
}

// Shares the loss, the gradient norm and the wish to stop; returns the norm.  The squared norms of
// the parameters are added in model order on every rank, whatever the layout: summing them with
// zeros over the pipe is exact.
double Trainer::combine(const std::vector<double>& losses, const std::vector<double>& weights,
                        std::int64_t microbatches, StepReport& report) {
  enum : std::int64_t { kLoss, kBadMicrobatches, kStop, kBusy, kSave, kNorms };
  const std::vector<double> my_squares = rank_model_->squared_norms();
  const at::Tensor shared = at::zeros({kNorms + std::ssize(my_squares)}, at::kDouble);
  auto* value = shared.data_ptr<double>();
  std::vector<double> mine = losses;
  mine.push_back(words_.stop ? 1 : 0);
  mine.push_back(words_.busy ? 1 : 0);
  mine.push_back(words_.save ? 1 : 0);
  std::vector<double> all = rank_model_->sum_over_copies(mine, "sharing the loss");
  const auto flags = all.begin() + std::ssize(losses);
  value[kStop] = flags[0];
  value[kBusy] = flags[1];
  value[kSave] = flags[2];
  all.erase(flags, all.end());
  if (rank_model_->is_last_stage()) {
    value[kLoss] = options_.loss_scale.combine(all, weights);
    value[kBadMicrobatches] = static_cast<double>(options_.loss_scale.bad(all, weights));
  }
  const std::span<double> squares(value + kNorms, my_squares.size());
  std::ranges::copy(my_squares, squares.begin());
  {
    const execute::WaitMark wait(progress_, "sharing the loss and the gradient norm");
    rank_model_->sum_over_pipe(shared);
  }
  report.loss = value[kLoss];
  report.words = {.stop = value[kStop] > 0, .save = value[kSave] > 0, .busy = value[kBusy] > 0};
  const double norm = update::gradient_norm(squares) / update_->scale().value();
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
  return compute_gradients(
      {cut(inputs, targets, options_.microbatches, *rank_model_, communicator_)});
}

StepReport Trainer::compute_gradients(const std::vector<Microbatches>& batches) {
  const comm::Call call("Trainer::compute_gradients()");
  check(batches, options_.microbatches, *rank_model_, communicator_);
  StepReport report{.step = steps_taken_ + 1};
  if (options_.precision.gradient_scale.enabled) report.gradient_scale = update_->scale().value();
  progress_.step.store(report.step, std::memory_order_relaxed);
  progress_.arrive("beginning a step");
  take_over(*rank_model_, *update_, communicator_);
  rank_model_->replicated().drop_gradients();
  const std::vector<double> weights = this->weights(batches);
  const std::vector<double> factors =
      comm::or_fail(communicator_, [&] { return options_.loss_scale.factors(weights); });
  const std::vector<double> losses = run(batches, factors, report.step);
  const torch::NoGradGuard no_grad;
  rank_model_->sum_tied_gradients();
  rank_model_->share_buffers();
  report.grad_norm = combine(losses, weights, microbatches_of(batches, options_), report);
  report.skipped = update_->skips(report.grad_norm);
  return report;
}

void Trainer::update(StepReport& report) {
  const comm::Call call("Trainer::update()");
  take_over(*rank_model_, *update_, communicator_);
  report.lr =
      options_.optimizer.lr *
      config::learning_rate_share(options_.scheduler, report.step - 1 - update_->skipped_steps(),
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
  evaluations_ = 0;
  if (!report.skipped) rank_model_->replicated().gather();
}

std::int64_t Trainer::offloaded_bytes() const {
  return rank_model_->replicated().file_bytes() + update_->file_bytes();
}

StepReport Trainer::step(const nn::Values& inputs, const nn::Values& targets) {
  return step({cut(inputs, targets, options_.microbatches, *rank_model_, communicator_)});
}

StepReport Trainer::step(const std::vector<Microbatches>& batches) {
  const comm::Call call("Trainer::step()");
  StepReport report = compute_gradients(batches);
  update(report);
  return report;
}

double Trainer::evaluate(const nn::Values& inputs, const nn::Values& targets) {
  return evaluate(cut(inputs, targets, options_.microbatches, *rank_model_, communicator_));
}

double Trainer::evaluate(const Microbatches& batch) {
  const comm::Call call("Trainer::evaluate()");
  check({batch}, options_.microbatches, *rank_model_, communicator_);
  if (!evaluate_) {
    evaluate_ = rank_model_->forward_executor(lower_here(
        layout_, lower::forward_program(layout_.schedule, options_.microbatches), communicator_));
  }
  const std::int64_t first =
      std::int64_t{rank_model_->place().coordinate.data} * options_.microbatches;
  const execute::StepResult result = rank_model_->run(
      *evaluate_, "evaluate",
      {.inputs = batch.inputs,
       .targets = batch.targets,
       .loss = loss_,
       .place = {.step = steps_taken_, .microbatch = first, .evaluation = ++evaluations_}});
  const at::Tensor loss = at::zeros({1}, at::kDouble);
  const std::vector<double> weights = this->weights({batch});
  if (rank_model_->is_last_stage()) {
    std::vector<double> losses(weights.size(), 0.0);
    put_losses(result, first, losses);
    const auto all = rank_model_->sum_over_copies(losses, "sharing the validation loss");
    loss.fill_(options_.loss_scale.combine(all, weights));
  }
  const execute::WaitMark wait(progress_, "sharing the validation loss");
  rank_model_->sum_over_pipe(loss);
  return loss.item<double>();
}

nn::Values Trainer::infer(const nn::Values& inputs) {
  const comm::Call call("Trainer::infer()");
  if (!infer_) {
    const std::int32_t microbatches = lower::forward_microbatches_min(layout_.schedule);
    infer_ = rank_model_->forward_executor(
        lower_here(layout_, lower::forward_program(layout_.schedule, microbatches), communicator_));
  }
  execute::StepInputs step{.place = {.step = steps_taken_,
                                     .microbatch = rank_model_->place().coordinate.data,
                                     .evaluation = ++evaluations_}};
  const auto copies = static_cast<std::size_t>(infer_->plan().microbatches);
  if (rank_model_->is_first_stage()) step.inputs.assign(copies, inputs);
  std::vector<nn::Values> outputs = rank_model_->run(*infer_, "infer", step).outputs;
  const auto mine = std::ranges::find_if_not(outputs, &nn::Values::empty);
  return mine == outputs.end() ? nn::Values() : std::move(*mine);
}

at::Tensor Trainer::infer(const at::Tensor& input) {
  const nn::Values outputs = infer(nn::Values(input));
  return rank_model_->is_last_stage() ? nn::the_only(outputs, "the output of infer() of a tensor")
                                      : at::Tensor();
}

}  // namespace penstock::train
