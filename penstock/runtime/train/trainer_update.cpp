// What a Trainer does with a step's gradients, and with what its program has set: the second half
// of a step.
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/config/learning_rate.h"
#include "penstock/runtime/comm/or_fail.h"
#include "penstock/runtime/train/handshake.h"
#include "penstock/runtime/train/own_optimizer.h"
#include "penstock/runtime/train/step_agreement.h"
#include "penstock/train/trainer.h"

namespace penstock::train {
namespace {

// The learning rate after so many updates.
double rate_of_update(const TrainerOptions& options, std::int64_t updates) {
  if (!options.learning_rate) {
    return options.optimizer.lr *
           config::learning_rate_share(options.scheduler, updates, options.total_steps);
  }
  const double rate = options.learning_rate(updates);
  if (std::isfinite(rate) && rate >= 0) return rate;
  throw Error(str("the function of the learning rate gives ", shortest(rate), " for ", updates,
                  ": it must give a number, at least 0"));
}

void check_has_own_rates(const TrainerOptions& options) {
  if (!options.learning_rate && options.scheduler.type == config::SchedulerType::Constant) return;
  throw ConfigError(
      "an optimizer of the program's own has its own rates: the options' learning_rate, or "
      "scheduler, has no effect on it",
      {"set the rates of its groups, by a scheduler of torch::optim for one"});
}

}  // namespace

void Trainer::check_computed(const StepReport& report) const {
  if (computed_ && computed_->step == report.step) return;
  if (computed_) {
    throw Error(str("update() has the report of step ", report.step,
                    ", and the gradients that were computed last are those of step ",
                    computed_->step));
  }
  throw Error(str("update() of step ", report.step, ": there are no gradients to apply"),
              {"call compute_gradients() before, once for each update()"});
}

// The norm of gradients as they are now, which the program may have changed.
double Trainer::norm_again(const std::vector<double>& rates) {
  comm::or_fail(communicator(), [this] { settle_gradients(*rank_model_); });
  const RankModel::SquaredNorms norms = rank_model_->squared_norms();
  const mesh::Groups& here = rank_model_->groups();
  // Tells whole gradients apart, which replicas must have alike.
  const double number = number_of({.rates = norms.here});
  std::vector<double> numbers = {norms.apart};
  append_number(numbers, here.same_parameters, number);
  append_number(numbers, here.same_parameters, number_of({.rates = rates}));
  std::vector<double> all = rank_model_->sums().over_copies(numbers, "comparing gradients");
  enum : std::uint8_t { kDifferences, kApart, kCounts };
  const SharedOverModel shared(kCounts, norms.counted, rates, here);
  double& differences = shared.counts()[kDifferences];
  const bool rates_differ = remove_numbers(all, here.same_parameters, number_of({.rates = rates}));
  differences = remove_numbers(all, here.same_parameters, number) || rates_differ ? 1 : 0;
  shared.counts()[kApart] = all.front();
  {
    const execute::WaitMark wait(progress(), "sharing the gradient norm");
    rank_model_->sums().over_model(shared.tensor());
  }
  if (differences > 0 || shared.counts()[kApart] != 0 || !shared.have_rates_alike()) {
    agree_on_settings({.rates = rates}, *rank_model_, communicator());
    agree_on_gradients(*rank_model_, communicator());
  }
  return update::gradient_norm(shared.squares()) / update_->gradients_scale();
}

void Trainer::update(StepReport& report, UpdatedBy optimizer) {
  calls_.run("Trainer::update()", steps_taken_, [&] {
    comm::or_fail(communicator(), [&] { check_computed(report); });
    std::vector<double> rates = {report.lr};
    if (optimizer.own() != nullptr) {
      rates = rates_of_step(optimizer);
      report.lr = rates.empty() ? 0.0 : rates.front();
    }
    or_undone([&] {
      report.grad_norm = norm_again(rates);
      apply(report, optimizer);
    });
  });
}

// The rates of the program's own optimizer, by group, which from now on has masters; without one
// the options' rate.
std::vector<double> Trainer::rates_of_step(UpdatedBy optimizer) {
  if (optimizer.own() == nullptr) {
    return comm::or_fail_at(communicator(), in_step(steps_taken_ + 1), [&] {
      return std::vector<double>{
          rate_of_update(options(), steps_taken_ - update_->skipped_steps())};
    });
  }
  comm::or_fail(communicator(), [&] {
    check_has_own_rates(options());
    give_masters(*optimizer.own(), *rank_model_, update_->masters());
  });
  if (own_ != optimizer.own()) {
    agree_on(Occasion::Step, facts_of(*optimizer.own()), communicator());
    own_ = optimizer.own();
  }
  return rates_of(*optimizer.own());
}

void Trainer::apply(StepReport& report, UpdatedBy optimizer) {
  comm::or_fail(communicator(), [this] { rank_model_->replicated().changes().find(); });
  if (computed_->overflows) {
    report.grad_norm = std::numeric_limits<double>::infinity();
    before_step_.put_back();  // Buffers have seen what made the loss overflow.
  }
  computed_.reset();
  report.skipped = update_->skips(report.grad_norm);
  // Steps count also where no scale is left to try.
  if (report.skipped) steps_taken_ = report.step;
  {
    const execute::WorkMark work(
        progress(), "updating parameters",
        update_->memory() == nullptr ? execute::Files::NotUsed : execute::Files::Used);
    const std::string where = str(" at loss ", shortest(report.loss));
    const auto step = [&](update::PartRun run) {
      calls_.set_half_updated(true);
      if (optimizer.own() != nullptr) {
        comm::or_fail_at(communicator(), in_step(report.step), [&] { optimizer.own()->step(); });
      } else {
        optimizer_->step(report.lr, run.first, run.end);
      }
      progress().advance();
    };
    report.skipped = !update_->apply(report.grad_norm, report.step, where, step);
  }
  if (!report.skipped) rank_model_->replicated().gather();
  rank_model_->replicated().changes().note();
  steps_taken_ = report.step;
  forwards_.since_step = 0;
  calls_.set_half_updated(false);
}

}  // namespace penstock::train
