#include "penstock/runtime/run/run_checkpoints.h"

#include <torch/version.h>

#include <optional>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/core/version.h"
#include "penstock/files/checkpoint/checkpoint_directory.h"
#include "penstock/plan/config/learning_rate.h"
#include "penstock/plan/config/resolve.h"

namespace penstock::run {
namespace {

constexpr const char* kScheduleSteps = "steps of the schedule";

checkpoint::Texts facts_with_layout(const train::Facts& facts, const train::Trainer& trainer) {
  checkpoint::Texts all;
  for (const agreement::StatedFact& each : facts) all[each.name] = each.value;
  all["mesh"] = mesh::to_string(trainer.layout().mesh.shape());
  all["schedule"] = schedule::title(trainer.layout().schedule.schedule());
  all["penstock"] = kVersion;
  all["torch"] = TORCH_VERSION;
  return all;
}

saving::CheckpointOptions options_for(const config::Config& config, const checkpoint::Texts& facts,
                                      const std::function<void(measure::RunEvent)>& note) {
  return {.directory = config::checkpoint_directory(config.checkpoint, config.run.directory),
          .keep = {.last = config.checkpoint.keep_last, .every = config.checkpoint.keep_every},
          .is_asynchronous = config.checkpoint.asynchronous,
          .facts = facts,
          .saved = [note](const saving::SavedStep& saved) {
            note({.kind = measure::RunEventKind::Saved,
                  .step = saved.step,
                  .folder = saved.folder,
                  .seconds = saved.seconds});
          }};
}

// What another part of a run may have another value of.
bool is_of_one_part(const std::string& fact) {
  return fact.starts_with("config run.") || fact.starts_with("config launch.") ||
         fact.starts_with("config checkpoint.");
}

bool is_of_training(const std::string& fact) {
  return fact.starts_with("config data.") || fact.starts_with("config scheduler.") ||
         fact.starts_with("config optimizer.");
}

}  // namespace

RunCheckpoints::RunCheckpoints(const config::Config& config, train::Trainer& trainer,
                               comm::Communicator& communicator, execute::Progress& progress,
                               const train::Facts& facts,
                               std::function<void(const std::string&)> tell,
                               std::function<void(measure::RunEvent)> note)
    : config_(config),
      options_(config.checkpoint),
      run_directory_(config.run.directory),
      directory_(config::checkpoint_directory(config.checkpoint, config.run.directory)),
      facts_(facts_with_layout(facts, trainer)),
      tell_(std::move(tell)),
      note_(std::move(note)),
      schedule_steps_(config.run.steps),
      trainer_(trainer),
      communicator_(communicator),
      checkpoints_(trainer, communicator, progress, options_for(config, facts_, note_), tell_) {
  if (saves()) checkpoints_.check_types();
}

void RunCheckpoints::resume(GoesOn goes_on) {
  if (options_.resume.empty()) return;
  if (options_.resume == "auto") {
    resumed_ = checkpoints_.resume();
  } else {
    resumed_ = checkpoints_.resume_from(options_.resume);
  }
  if (!resumed_) {
    tell_(str("no checkpoint in ", quoted_path(directory_), ": the run begins at step 1"));
    return;
  }
  goes_on_here_ = checkpoint::is_in(resumed_->folder, directory_);
  if (goes_on == GoesOn::Training) settle_schedule(*resumed_);
  tell_resumed(*resumed_, goes_on);
}

void RunCheckpoints::tell_resumed(const saving::Resumed& resumed, GoesOn goes_on) const {
  for (const std::string& reason : resumed.passed_over) {
    tell_(str("a newer checkpoint is passed over: ", reason));
  }
  tell_(str("resumed after step ", resumed.step, " from ", resumed.folder));
  for (const auto& [fact, now] : facts_) {
    const auto before = resumed.facts.find(fact);
    if (is_of_one_part(fact) || before == resumed.facts.end() || before->second == now) continue;
    if (goes_on == GoesOn::Evaluating && is_of_training(fact)) continue;
    tell_(str(fact, " was ", before->second, ", is ", now));
  }
}

// A course of the rate that ends with the run is another one where the run has another length.
void RunCheckpoints::settle_schedule(const saving::Resumed& resumed) {
  if (!config::ends_with_run(config_.scheduler)) return;
  const auto find = [](const checkpoint::Texts& texts, const char* name) {
    const auto found = texts.find(name);
    return found == texts.end() ? std::nullopt : parse_integer(found->second);
  };
  const auto of_run = find(resumed.facts, "config run.steps");
  const auto before = find(resumed.client_state, kScheduleSteps);
  const std::int64_t ended = before.value_or(of_run.value_or(config_.run.steps));
  if (ended == config_.run.steps) return;
  if (options_.schedule == config::ResumedSchedule::Rescale) {
    return tell_rate_that_jumps(resumed, ended);
  }
  schedule_steps_ = ended;
  tell_(str("the learning rate keeps its course, which ends with step ", ended, "; run.steps is ",
            config_.run.steps));
}

void RunCheckpoints::tell_rate_that_jumps(const saving::Resumed& resumed,
                                          std::int64_t before) const {
  const config::SchedulerConfig& scheduler = config_.scheduler;
  if (resumed.step < 1 || resumed.step >= config_.run.steps) return;
  const auto rate = [&](std::int64_t step, std::int64_t steps_of_run) {
    return config_.optimizer.lr * config::learning_rate_share(scheduler, step, steps_of_run);
  };
  const double next = rate(resumed.step, config_.run.steps);
  if (rate(resumed.step, before) == next) return;
  tell_(str("the learning rate goes from ", shortest(rate(resumed.step - 1, before)), " at step ",
            resumed.step, " to ", shortest(next), " at step ", resumed.step + 1,
            ": its schedule ends with the run, run.steps was ", before, ", is ", config_.run.steps,
            "; --schedule keep ends it where it did"));
}

void RunCheckpoints::ask() {
  using Minutes = std::chrono::duration<double, std::ratio<60>>;
  const Minutes age = std::chrono::steady_clock::now() - last_save_;
  const bool is_root = communicator_.rank().value == 0;
  trainer_.words().save =
      is_root && options_.save_minutes > 0 && age.count() >= options_.save_minutes;
}

void RunCheckpoints::after(const train::StepReport& report, bool is_last) {
  if (!saves()) return;
  const bool is_kth = options_.save_interval > 0 && report.step % options_.save_interval == 0;
  const bool is_due = is_last || is_kth || report.words.save;
  if (is_due) last_save_ = std::chrono::steady_clock::now();
  or_warn([&] { is_due ? checkpoints_.finish() : checkpoints_.after(report); });
  if (!is_due) return;
  if (!is_last) return or_warn([&] { begin_save(); });
  noting_failure([&] {
    begin_save();
    checkpoints_.finish();
  });
  has_last_step_ = true;
}

void RunCheckpoints::finish() {
  try {
    noting_failure([&] { checkpoints_.finish(); });
  } catch (const CheckpointError& error) {
    tell_(error.what());  // What the run fails with says more.
  }
}

void RunCheckpoints::begin_save() {
  begun_step_ = trainer_.steps_taken();
  checkpoint::Texts state = state_ ? state_() : checkpoint::Texts();
  if (config::ends_with_run(config_.scheduler)) state[kScheduleSteps] = str(schedule_steps_);
  checkpoints_.save(state);
}

template <class Action>
void RunCheckpoints::noting_failure(const Action& action) {
  try {
    action();
  } catch (const CheckpointError& error) {
    note_({.kind = measure::RunEventKind::SaveFailed,
           .step = begun_step_,
           .reason = error.message()});
    throw;
  }
}

// All ranks find the same error.
template <class Action>
void RunCheckpoints::or_warn(const Action& action) {
  try {
    noting_failure(action);
  } catch (const CheckpointError& error) {
    if (options_.on_failure == config::OnFailure::Stop) throw;
    tell_(error.what());
  }
}

std::string RunCheckpoints::how_to_go_on() const {
  return has_last_step_ ? str("; to go on: --run ", run_directory_, " --resume auto") : "";
}

}  // namespace penstock::run
