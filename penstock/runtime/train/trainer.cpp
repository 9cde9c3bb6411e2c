#include "penstock/train/trainer.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/lower/programs.h"
#include "penstock/runtime/comm/calls.h"
#include "penstock/runtime/comm/or_fail.h"
#include "penstock/runtime/nn/later_checks.h"
#include "penstock/runtime/nn/loss_layer.h"
#include "penstock/runtime/train/own_optimizer.h"
#include "penstock/runtime/train/shared_layers.h"
#include "penstock/runtime/train/step_agreement.h"

namespace penstock::train {
namespace {

// REQUIRES: this rank has the last stage.
std::shared_ptr<nn::Layer> last_layer(RankModel& here) {
  const auto last = std::ranges::max_element(
      here.stages(), {}, [](const stage::Stage& stage) { return stage.id().value; });
  return last->layers().all().back();
}

// This rank's part of a batch, cut into the schedule's microbatches.
Microbatches cut(const nn::Values& inputs, const nn::Values& targets, std::int32_t microbatches,
                 const RankModel& here, comm::Communicator& communicator, std::int64_t step) {
  return comm::or_fail_at(communicator, in_step(step), [&] {
    Microbatches batch{.cut_by = CutBy::Trainer};
    if (here.is_first_stage()) batch.inputs = split(inputs, microbatches);
    if (here.is_last_stage()) batch.targets = split(targets, microbatches);
    return batch;
  });
}

// The losses that are there, as numbers of the host: of a device, by one copy.
std::vector<double> numbers(const std::vector<at::Tensor>& losses) {
  std::vector<double> found;
  std::vector<at::Tensor> elsewhere;
  for (const at::Tensor& loss : losses) {
    if (!loss.defined()) continue;
    if (loss.is_cpu()) {
      found.push_back(loss.item<double>());
    } else {
      elsewhere.push_back(loss.to(at::kDouble));
    }
  }
  if (elsewhere.empty()) return found;
  const at::Tensor here = at::stack(elsewhere).cpu();
  const auto* const first = here.const_data_ptr<double>();
  return {first, first + here.numel()};
}

// Puts losses at their microbatches' places among those of the step.
// Throws: what a check refuses, where a loss is no number.
void put_losses(const execute::StepResult& result, nn::LaterChecks& checks, std::int64_t first,
                std::vector<double>& losses) {
  const std::vector<double> found = numbers(result.losses);
  auto next = found.begin();
  for (std::size_t m = 0; m < result.losses.size(); ++m) {
    if (!result.losses[m].defined()) continue;
    if (!std::isfinite(*next)) checks.run();
    losses[static_cast<std::size_t>(first) + m] = *next++;
  }
}

std::vector<bool> of_nothing(std::span<const double> weights) {
  std::vector<bool> all;
  for (const double weight : weights) all.push_back(weight == 0);
  return all;
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

// Microbatches of the step on all replicas.
std::int64_t microbatches_of(const std::vector<Microbatches>& batches,
                             const TrainerOptions& options) {
  return std::ssize(batches) * options.microbatches * options.mesh.size(mesh::Role::OtherSamples);
}

std::vector<at::Tensor> buffers_of(RankModel& here) {
  std::vector<at::Tensor> buffers;
  for (const stage::Stage& stage : here.stages()) {
    for (const at::Tensor& buffer : stage.layers().buffers()) buffers.push_back(buffer);
  }
  return buffers;
}

// What several ranks that share layers have is computed by each, from the same, by the same
// kernels.
[[noreturn]] void refuse_apart(RankModel& here, comm::Communicator& communicator,
                               std::int64_t step) {
  agree_on_gradients(here, communicator);
  throw NumericsError(
      str("step ", step,
          ": ranks that share layers have different gradients of what "
          "all of them have"),
      {"each computes a layer without pieces by itself: kernels that give other bits on each "
       "rank drive them apart; give the layer pieces (penstock/nn/shared.h)"});
}

}  // namespace

Trainer::Trainer(const TrainerOptions& options, std::vector<nn::LayerSpec> layers, nn::Loss loss,
                 comm::Communicator& communicator)
    : TrainedModel(options, nn::with_loss(std::move(layers), loss), loss, communicator) {
  const comm::Call call("Trainer()");
  weights_.emplace(this->options(), layout(), *rank_model_, communicator, progress());
  before_step_ = stage::StateBefore(buffers_of(*rank_model_));
  if (loss.is_of_module() && rank_model_->is_last_stage()) {
    loss = nn::loss_of(last_layer(*rank_model_), loss);
  }
  if (blocks_of_layers(this->options()) && !rank_model_->sharing().are_several()) {
    loss = loss_in_blocks(std::move(loss));
  }
  loss_ = this->options().precision.loss(std::move(loss));
}

Trainer& Trainer::operator=(Trainer&& other) noexcept {
  if (this == &other) return *this;
  std::destroy_at(this);
  return *std::construct_at(this, std::move(other));
}

// The losses of all microbatches of the step, on the last stage's ranks; 0 for those of other
// ranks.  Replicas count their microbatches one after the other, as one rank would count all of
// them.
std::vector<double> Trainer::run(const std::vector<Microbatches>& batches,
                                 const std::vector<double>& weights, std::int64_t step) {
  const std::vector<double> factors =
      comm::or_fail(communicator(), [&] { return options().loss_scale.factors(weights); });
  const std::int64_t runs = std::ssize(batches);
  const std::int64_t replica = rank_model_->groups().other_samples.here;
  std::vector<double> losses(rank_model_->is_last_stage() ? factors.size() : 0, 0.0);
  for (std::int64_t run = 0; run < runs; ++run) {
    const Microbatches& batch = batches[static_cast<std::size_t>(run)];
    execute::StepInputs inputs{
        .inputs = batch.inputs,
        .targets = batch.targets,
        .loss = loss_,
        .gradient_divisor = options().loss_scale.divisor(microbatches_of(batches, options())),
        .place = {.step = step, .microbatch = (replica * runs + run) * options().microbatches},
        .accumulation =
            run + 1 == runs ? execute::Accumulation::Ends : execute::Accumulation::GoesOn};
    if (rank_model_->is_last_stage()) {
      const auto first = static_cast<std::size_t>(inputs.place.microbatch);
      const auto count = static_cast<std::size_t>(options().microbatches);
      for (const double factor : std::span(factors).subspan(first, count)) {
        inputs.loss_factors.push_back(factor * update_->scale().value());
      }
      inputs.of_nothing = of_nothing(std::span(weights).subspan(first, count));
    }
    compare_batch(batch, step);
    nn::LaterChecks checks;
    const execute::StepResult result =
        rank_model_->run(program_->executor(), program_->name().c_str(), inputs);
    comm::or_fail_at(communicator(), in_step(step), [&] {
      if (run + 1 == runs) program_->executor().await_device();
      put_losses(result, checks, inputs.place.microbatch, losses);
    });
  }
  return losses;
}

// Ranks that share layers would compute nonsense together, or wait for ever, with samples of
// different replicas.
void Trainer::compare_batch(const Microbatches& batch, std::int64_t step) {
  if (!options().compares_weights) return;
  comm::or_fail_at(communicator(), in_step(step), [&] {
    rank_model_->sharing().check_same(
        rank_model_->is_first_stage() ? batch.inputs : std::vector<nn::Values>{},
        rank_model_->is_last_stage() ? batch.targets : std::vector<nn::Values>{});
  });
}

// Shares the loss, the gradient norm and the wish to stop; returns the norm.  The squared norms of
// the parameters are added in model order on every rank, whatever the layout: summing them with
// zeros over the pipe is exact.
double Trainer::combine(const std::vector<double>& losses, const std::vector<double>& weights,
                        std::int64_t microbatches, const OwnSettings& own, StepReport& report) {
  enum : std::uint8_t {
    kLoss,
    kBadMicrobatches,
    kBadElsewhere,
    kStop,
    kBusy,
    kSave,
    kCompare,
    kApart,
    kCounts
  };
  const mesh::Groups& here = rank_model_->groups();
  const RankModel::SquaredNorms norms = rank_model_->squared_norms();
  const SharedOverModel shared(kCounts, norms.counted, own.rates, here);
  const std::span<double> value = shared.counts();
  std::vector<double> mine = losses;
  mine.push_back(words_.stop ? 1 : 0);
  mine.push_back(words_.busy ? 1 : 0);
  mine.push_back(words_.save ? 1 : 0);
  append_number(mine, here.same_parameters, number_of(own));
  std::vector<double> all = rank_model_->sums().over_copies(mine, "sharing the loss");
  const bool differs = remove_numbers(all, here.same_parameters, number_of(own));
  value[kCompare] = differs || is_in_several_places(own, *rank_model_) ? 1 : 0;
  const auto flags = all.begin() + std::ssize(losses);
  value[kStop] = flags[0];
  value[kBusy] = flags[1];
  value[kSave] = flags[2];
  all.erase(flags, all.end());
  if (rank_model_->is_last_stage()) {
    const bool counts = rank_model_->sums().counts_here();
    const auto bad = static_cast<double>(options().loss_scale.bad(all, weights));
    value[counts ? kBadMicrobatches : kBadElsewhere] = bad;
    if (counts) value[kLoss] = options().loss_scale.combine(all, weights);
  }
  value[kApart] = norms.apart;
  {
    const execute::WaitMark wait(progress(), "sharing the loss and the gradient norm");
    rank_model_->sums().over_model(shared.tensor());
  }
  if (value[kCompare] > 0 || !shared.have_rates_alike()) {
    agree_on_settings(own, *rank_model_, communicator());
  }
  report.loss = value[kLoss];
  report.words = {.stop = value[kStop] > 0, .save = value[kSave] > 0, .busy = value[kBusy] > 0};
  const double norm = update::gradient_norm(shared.squares()) / update_->gradients_scale();
  const double bad = std::max(value[kBadMicrobatches], value[kBadElsewhere]);
  const bool is_comparable = bad == 0 && norm < std::numeric_limits<double>::infinity();
  if (is_comparable && value[kApart] != 0) {
    refuse_apart(*rank_model_, communicator(), report.step);
  }
  if (bad == 0) return norm;
  constexpr double kOverflow = std::numeric_limits<double>::infinity();  // Wherever it was.
  if (!update_->skips(kOverflow)) {
    throw NumericsError(str("step ", report.step, ": the loss of ", bad, " of ", microbatches,
                            " microbatches is not finite; the step's is ", shortest(report.loss)),
                        {"the weights are as before this step",
                         "lower optimizer.params.lr, or set gradient_clipping"});
  }
  report.skipped = true;
  return kOverflow;
}

StepReport Trainer::compute(const std::vector<Microbatches>& batches, EarlierGradients earlier,
                            Use use, const std::vector<double>& rates) {
  check(batches, options().microbatches, *rank_model_, communicator());
  comm::or_fail(communicator(), [&] {
    if (!computed_ || earlier == EarlierGradients::Added) return;
    throw Error(str("the gradients of step ", computed_->step, " were computed and not applied"),
                {"call update() with their report, or zero_grad(), or add to them: "
                 "compute_gradients(..., EarlierGradients::Added)"});
  });
  StepReport report{.step = steps_taken_ + 1, .lr = rates.empty() ? 0.0 : rates.front()};
  if (options().precision.gradient_scale.enabled) report.gradient_scale = update_->scale().value();
  progress().step.store(report.step, std::memory_order_relaxed);
  progress().arrive("beginning a step");
  parameters::RankParameters& replicated = rank_model_->replicated();
  comm::or_fail(communicator(), [&] { replicated.changes().find(); });
  const std::vector<at::Tensor> before =
      computed_ ? parameters::copies_of_gradients(replicated.parts()) : std::vector<at::Tensor>{};
  const bool overflowed = computed_ && computed_->overflows;
  if (!computed_) before_step_.renew();
  zero_grad();
  return or_undone([&] {
    const std::vector<double> weights = weights_->of(batches, report.step);
    const std::vector<double> losses = run(batches, weights, report.step);
    const torch::NoGradGuard no_grad;
    rank_model_->sum_shared_gradients();
    rank_model_->share_buffers();
    if (use == Use::Shown) update_->unscale_gradients();
    parameters::add_gradients(replicated.parts(), before);
    const OwnSettings own{.weights = replicated.changes().take_found(), .rates = rates};
    report.grad_norm = combine(losses, weights, microbatches_of(batches, options()), own, report);
    const bool overflows = overflowed || report.skipped;
    report.skipped = overflows || update_->skips(report.grad_norm);
    computed_ = {.step = report.step, .overflows = overflows};
    return report;
  });
}

// Goes back to before the step, whatever its halves have done.
void Trainer::undo_step() {
  before_step_.put_back();
  zero_grad();
}

StepReport Trainer::compute_gradients(const nn::Values& inputs, const nn::Values& targets,
                                      EarlierGradients earlier) {
  return calls_.run("Trainer::compute_gradients()", steps_taken_, [&] {
    return compute_gradients({cut(inputs, targets, options().microbatches, *rank_model_,
                                  communicator(), steps_taken_ + 1)},
                             earlier);
  });
}

StepReport Trainer::compute_gradients(const std::vector<Microbatches>& batches,
                                      EarlierGradients earlier) {
  return calls_.run("Trainer::compute_gradients()", steps_taken_,
                    [&] { return compute(batches, earlier, Use::Shown, rates_of_step({})); });
}

StepReport Trainer::step(const nn::Values& inputs, const nn::Values& targets, UpdatedBy optimizer) {
  return calls_.run("Trainer::step()", steps_taken_, [&] {
    return step({cut(inputs, targets, options().microbatches, *rank_model_, communicator(),
                     steps_taken_ + 1)},
                optimizer);
  });
}

StepReport Trainer::step(const std::vector<Microbatches>& batches, UpdatedBy optimizer) {
  return calls_.run("Trainer::step()", steps_taken_, [&] {
    StepReport report =
        compute(batches, EarlierGradients::Refused, Use::Applied, rates_of_step(optimizer));
    or_undone([&] { apply(report, optimizer); });
    return report;
  });
}

double Trainer::evaluate(const nn::Values& inputs, const nn::Values& targets) {
  return calls_.run("Trainer::evaluate()", steps_taken_, [&] {
    return evaluate(
        cut(inputs, targets, options().microbatches, *rank_model_, communicator(), /*step=*/0));
  });
}

double Trainer::evaluate(const Microbatches& batch) {
  return calls_.run("Trainer::evaluate()", steps_taken_, [&] {
    check({batch}, options().microbatches, *rank_model_, communicator());
    if (!forwards_.evaluate) {
      forwards_.evaluate = rank_model_->forward_executor(
          lower_here(layout(), lower::forward_program(layout().schedule, options().microbatches),
                     communicator()));
    }
    const std::int64_t first =
        std::int64_t{rank_model_->groups().other_samples.here} * options().microbatches;
    const std::vector<double> weights = weights_->of({batch}, /*step=*/0);
    execute::StepInputs inputs{
        .inputs = batch.inputs,
        .targets = batch.targets,
        .loss = loss_,
        .place = {.step = steps_taken_, .microbatch = first, .evaluation = ++forwards_.since_step}};
    if (rank_model_->is_last_stage()) {
      inputs.of_nothing = of_nothing(
          std::span(weights).subspan(static_cast<std::size_t>(first), batch.targets.size()));
    }
    compare_batch(batch, /*step=*/0);
    nn::LaterChecks checks;
    const execute::StepResult result = rank_model_->run(*forwards_.evaluate, "evaluate", inputs);
    const at::Tensor loss = at::zeros({1}, at::kDouble);
    if (rank_model_->is_last_stage()) {
      std::vector<double> losses(weights.size(), 0.0);
      comm::or_fail(communicator(), [&] { put_losses(result, checks, first, losses); });
      const auto all = rank_model_->sums().over_copies(losses, "sharing the validation loss");
      loss.fill_(options().loss_scale.combine(all, weights));
    }
    const execute::WaitMark wait(progress(), "sharing the validation loss");
    rank_model_->sums().once_over_model(loss);
    return loss.item<double>();
  });
}

nn::Values Trainer::infer(const nn::Values& inputs) {
  return calls_.run("Trainer::infer()", steps_taken_, [&]() -> nn::Values {
    if (!forwards_.infer) {
      const std::int32_t microbatches = lower::forward_microbatches_min(layout().schedule);
      forwards_.infer = rank_model_->forward_executor(lower_here(
          layout(), lower::forward_program(layout().schedule, microbatches), communicator()));
    }
    execute::StepInputs step{.place = {.step = steps_taken_,
                                       .microbatch = rank_model_->groups().other_samples.here,
                                       .evaluation = ++forwards_.since_step}};
    const auto copies = static_cast<std::size_t>(forwards_.infer->plan().microbatches);
    if (rank_model_->is_first_stage()) step.inputs.assign(copies, inputs);
    compare_batch({.inputs = step.inputs}, /*step=*/0);
    std::vector<nn::Values> outputs = rank_model_->run(*forwards_.infer, "infer", step).outputs;
    const auto mine = std::ranges::find_if_not(outputs, &nn::Values::empty);
    return mine == outputs.end() ? nn::Values() : rank_model_->sharing().whole_outputs(*mine);
  });
}

at::Tensor Trainer::infer(const at::Tensor& input) {
  const nn::Values outputs = infer(nn::Values(input));
  return rank_model_->is_last_stage() ? nn::the_only(outputs, "the output of infer() of a tensor")
                                      : at::Tensor();
}

}  // namespace penstock::train
