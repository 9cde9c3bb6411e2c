#include "penstock/run/run.h"

#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "penstock/core/text.h"
#include "penstock/plan/config/learning_rate.h"
#include "penstock/run/saved_model.h"
#include "penstock/runtime/hugging_face/generation_config.h"
#include "penstock/runtime/offload/kept_memory.h"
#include "penstock/runtime/rank/watch.h"
#include "penstock/runtime/run/adapting.h"
#include "penstock/runtime/run/best_loss.h"
#include "penstock/runtime/run/configured_trainer.h"
#include "penstock/runtime/run/injected_faults.h"
#include "penstock/runtime/run/model_card.h"
#include "penstock/runtime/run/report_files.h"
#include "penstock/runtime/run/run_checkpoints.h"
#include "penstock/runtime/run/run_data.h"
#include "penstock/runtime/run/run_record.h"
#include "penstock/runtime/run/telling_others.h"
#include "penstock/runtime/run/text_samples.h"
#include "penstock/runtime/run/timeline.h"
#include "penstock/runtime/run/type_cost.h"
#include "penstock/runtime/run/validation.h"
#include "penstock/runtime/train/precision.h"
#include "penstock/train/trainer.h"

namespace penstock::run {
namespace {

using config::Config;
using execute::Files;
using execute::Phase;
using measure::RunEventKind;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Whether a run is to stop before its last step, and why.
class StopReasons {
 public:
  StopReasons(const config::RunConfig& run, const RunHooks& hooks) : run_(run), hooks_(hooks) {}

  bool any() const { return asked() || is_time_over(); }
  ExitCode code() const { return asked().value_or(ExitCode::Preempted); }
  const char* words() const { return is_time_over() ? "run.minutes are over" : "as asked"; }

 private:
  std::optional<ExitCode> asked() const {
    return hooks_.stop_requested ? hooks_.stop_requested() : std::nullopt;
  }
  bool is_time_over() const {
    const double seconds = hooks_.earlier_seconds + seconds_since(begun_);
    return run_.minutes > 0 && seconds >= 60 * run_.minutes;
  }

  const config::RunConfig& run_;
  const RunHooks& hooks_;
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

// How the steps of this start have ended.
struct Ending {
  std::optional<train::StepReport> last;        // Report of the last step; absent: there was none.
  bool is_last_recorded = false;                // The last step is in the timeline.
  bool is_early = false;                        // No better model was in sight.
  std::optional<CheckpointError> save_failure;  // Failure of the last checkpoint.
  ExitCode code = ExitCode::Ok;
};

class Run {
 public:
  Run(const config::ReadConfig& read, comm::Communicator& communicator, c10::Device device,
      const RunHooks& hooks)
      : config_(read.config),
        hooks_(hooks),
        best_(config_.run.best, config_.run.patience),
        faults_(hooks.faults, communicator.rank(), hooks.start, progress_),
        trained_(config_, communicator, device, progress_),
        record_(read, hooks.messages, progress_, trained_.is_root()),
        stops_(config_.run, hooks),
        watch_(communicator, progress_, config_.launch) {}

  ExitCode go() {
    record_.lock_folders();
    read_inputs();
    build();
    record_.begin(trained_, *checkpoints_, *samples_, course());
    try {
      train();
      keep_result();
      after_training();
    } catch (const NumericsError&) {
      checkpoints_->finish();  // All ranks find it.
      throw;
    }
    finish_record();
    if (ending_.save_failure) throw CheckpointError(*ending_.save_failure);
    const Phase leaving(progress_, "leaving");
    const execute::WaitMark wait(progress_, "waiting for all ranks to be ready to leave");
    trained_.communicator().barrier("end");
    faults_.finish();
    return ending_.code;
  }

 private:
  void read_inputs() {
    {
      const Phase reading(progress_, "reading the model's description", Files::Used);
      trained_.read_model();
      if (!config_.run.save.empty()) SavedModel::check_folder(config_.run.save, trained_.model());
    }
    const Phase reading(progress_, "reading data", Files::Used);
    const auto advanced = [this] { progress_.advance(); };
    data_ = open_data(config_, trained_.model(), trained_.batch_size(), advanced);
    if (config_.run.epochs > 0) {
      config_.run.steps = steps_of_epochs(*data_, config_.run.epochs, trained_.batch_size());
    }
    check_training(*data_, config_.run.steps);
    check_validation(*data_, config_.run.eval_batches, advanced);
    samples_.emplace(config_, trained_.model(), *data_, hooks_, [this](const std::string& text) {
      record_.end_line();
      hooks_.results.write(text);
    });
  }

  void build() {
    const Phase building(progress_, "building the model");
    trained_.build(data_->facts(), data_->loss_scale());
    trained_.keep_freed_memory();
    comm::Communicator& communicator = trained_.communicator();
    samples_->prepare(communicator, progress_);
    saved_model_.emplace(config_.run.save, trained_.model(), trained_.trainer(), communicator,
                         progress_);
    if (!config_.run.save.empty()) saved_model_->check_room();
    const auto tell = [this](const std::string& text) { record_.tell("penstock: " + text); };
    name_answer_ends(tell);
    tell_cost_of_type(tell);
    const auto note = [this](measure::RunEvent event) { record_.note(std::move(event)); };
    checkpoints_.emplace(config_, trained_.trainer(), communicator, progress_, trained_.facts(),
                         tell, note);
    adapting_.emplace(
        config_, trained_.device(), trained_.trainer(), communicator, progress_,
        Adapting::Listeners{.tell = tell,
                            .note = note,
                            .write = [this](const std::string& name, std::string content) {
                              record_.replace(name, std::move(content));
                            }});
    checkpoints_->resume();
    adapting_->resume();
    trained_.end_schedule_at(checkpoints_->schedule_steps());
    config::require_curve_fits(config_.scheduler, checkpoints_->schedule_steps(), tell);
    if (!watches_best()) return;
    checkpoints_->keep([this] { return best_.state(); });
    if (!checkpoints_->resumed()) return;
    if (const auto other = best_.go_on_from(checkpoints_->resumed()->client_state)) {
      tell(str("the lowest loss was that of ", *other, ": the lowest of ", config_.run.best,
               " is looked for from here on"));
    }
  }

  // A model that was taught to end its answers with a token is to be stopped by that.
  void tell_cost_of_type(const std::function<void(const std::string&)>& tell) const {
    if (!trained_.is_root()) return;
    const auto cost = cost_of_type(train::make_precision(config_).type, trained_.device());
    if (cost) tell(*cost);
  }

  void name_answer_ends(const std::function<void(const std::string&)>& tell) {
    const auto& folder = trained_.model().folder;
    if (!folder || config_.run.save.empty()) return;
    const std::vector<std::int64_t> known =
        hugging_face::read_generation_config(folder->path()).ends;
    std::set<std::int64_t> ends = data_->answer_ends();
    for (const std::int64_t each : known) ends.erase(each);
    if (ends.empty()) return;
    tell(str("answers end with token ", join(ends, ", "), ", which ", folder->name(),
             " does not name as an end; generation_config.json in ", config_.run.save, " will"));
    saved_model_->answers_end_with(std::move(ends));
  }

  bool watches_best() const { return !config_.run.best.empty(); }

  RunRecord::Course course() const {
    RunRecord::Course course{.steps = config_.run.steps, .data = data_->summary()};
    if (config_.run.epochs > 0) {
      const std::int64_t samples = *data_->samples_of_epoch();
      course.epochs_per_step =
          static_cast<double>(trained_.batch_size()) / static_cast<double>(samples);
      course.data += str("; ", shortest(config_.run.epochs), " epochs in ", course.steps, " steps");
    }
    return course;
  }

  void train() {
    const Phase training(progress_, "training");
    const std::int64_t first = trained_.trainer().steps_taken() + 1;
    const std::int64_t last_recorded = first + config_.run.timeline_steps - 1;
    if (ended_before(first - 1)) return;
    for (std::int64_t step = first; step <= config_.run.steps; ++step) {
      const train::StepReport report = take_step(step, /*recorded=*/step <= last_recorded);
      if (step == config_.run.steps || report.words.stop) {
        ending_.last = report;
        ending_.is_last_recorded = step <= last_recorded;
        return;
      }
      if (step == last_recorded) write_timeline();
      if (is_validation_due(step)) validate(step);
      if (best_.is_over()) {
        ending_.last = report;
        ending_.is_early = true;
        return;
      }
      after_step(report);
    }
  }

  bool is_validation_due(std::int64_t step) const {
    const std::int64_t interval = config_.run.eval_interval;
    return interval > 0 && step > 0 && step % interval == 0;
  }

  // Whether the run that is gone on from had ended early.  A run's last checkpoint is from before
  // its last validation, which a longer run has, too.
  bool ended_before(std::int64_t step) {
    const bool goes_on = watches_best() && step > 0 && step < config_.run.steps;
    if (goes_on && is_validation_due(step) && best_.validated_step() < step) validate(step);
    ending_.is_early = best_.is_over();
    return ending_.is_early;
  }

  train::StepReport take_step(std::int64_t step, bool recorded) {
    const auto start = std::chrono::steady_clock::now();
    train::Trainer& trainer = trained_.trainer();
    if (recorded) {
      trainer.program().executor().record_next_run();
    } else {
      adapting_->before();
    }
    const std::optional<std::int64_t> program = adapting_->program();
    if (stops_.any()) trainer.words().stop = true;
    checkpoints_->ask();
    const Batch batch = data_->training(step, trained_.first_sample(), trained_.samples());
    const train::StepReport report = trainer.step(batch.input, batch.target);
    record_.step(report, seconds_since(start), program);
    if (recorded) timeline_.add(step, trainer.program().executor());
    return report;
  }

  void after_step(const train::StepReport& report) {
    const std::int64_t step = report.step;
    if (samples_->is_due(step)) write_samples(step);
    adapting_->after(step);
    checkpoints_->after(report,
                        /*is_last=*/false);  // What goes on from it has all lines up to its step.
    const std::int64_t save_interval = config_.run.save_interval;
    if (save_interval > 0 && step % save_interval == 0) save();
  }

  void write_samples(std::int64_t step) {
    offload::give_back_free_memory();
    samples_->write(step, trained_.trainer(), progress_);
  }

  // What was trained is on the disk before anything else can fail or hang.
  void keep_result() {
    offload::give_back_free_memory();
    record_.end_line();
    if (ending_.last) {
      try {
        checkpoints_->after(*ending_.last, /*is_last=*/true);
      } catch (const CheckpointError& error) {  // All ranks find it.
        ending_.save_failure = error;
      }
      if (ending_.last->words.stop) tell_stop();
    }
    progress_.step.store(0, std::memory_order_relaxed);
    if (!watches_best()) {
      if (!config_.run.save.empty()) save();
      return;
    }
    if (ending_.is_early) tell_early();
    if (ending_.last && !config_.checkpoint.saves()) save_last();
  }

  // The model that run.save gets is another one, and its last validation may fail.
  void save_last() {
    const std::string folder = config_.run.directory + "/last";
    SavedModel last(folder, trained_.model(), trained_.trainer(), trained_.communicator(),
                    progress_);
    record_.tell(last.write(card()));
  }

  void tell_early() {
    const auto& best = best_.best();
    record_.tell(str("stopped early after step ", trained_.trainer().steps_taken(), ": of ",
                     best_.waited(), " validations none was below that of step ", best->step, ", ",
                     shortest(best->loss)));
  }

  void tell_stop() {
    ending_.code = stops_.code();
    record_.tell(str("stopped after step ", ending_.last->step, ", ", stops_.words(),
                     checkpoints_->how_to_go_on()));
    record_.note({.kind = RunEventKind::Stopped,
                  .step = ending_.last->step,
                  .reason = stops_.words(),
                  .exit_code = static_cast<std::int64_t>(ending_.code)});
  }

  // Ends training.  Called, too, for a run that goes on from its last step, and was ended here
  // before.
  void after_training() {
    const std::int64_t step = trained_.trainer().steps_taken();
    progress_.step.store(step, std::memory_order_relaxed);
    if (ending_.is_last_recorded) write_timeline();
    if (ending_.code == ExitCode::Ok) {
      if (best_.validated_step() != step) validate(step);
      if (samples_->any()) write_samples(step);
    }
    if (watches_best()) keep_best();
    progress_.step.store(0, std::memory_order_relaxed);
  }

  // A run that was stopped before its first validation has no best model but its last.
  void keep_best() {
    if (config_.run.save.empty()) return;
    if (!best_.best()) return save();
    const std::string of_best = str("of step ", best_.best()->step, ", ",
                                    words_of(config_.run.best), " ", shortest(best_.best()->loss));
    if (has_best()) {
      return record_.tell(str("the best model is that ", of_best, ": ", config_.run.save));
    }
    record_.tell(str("the best model, ", of_best, ", is not in ", config_.run.save,
                     ": an earlier part of the run saved it elsewhere, or something else has taken "
                     "its place; ",
                     config_.run.save, " gets the last one"));
    save();
  }

  // Whether the folder still has what this run saved there.
  bool has_best() {
    const bool has = trained_.is_root() && !best_.model().empty() &&
                     SavedModel::identity_of(config_.run.save) == best_.model();
    const auto all = trained_.communicator().exchange("the best model", has ? "is there" : "");
    return !all.front().empty();
  }

  static std::string words_of(const std::string& set) {
    return set == config::kOnlyValidationSet ? "validation loss" : "validation loss of " + set;
  }

  // The set that says which model is the best goes first.
  ValidationLosses validation_losses() {
    const Phase validating(progress_, "validating");
    offload::give_back_free_memory();  // A step's activations, which are more than is used here.
    const std::vector<std::string> sets = data_->validation_sets();
    ValidationLosses losses;
    for (std::size_t i = 0; i < sets.size(); ++i) {
      const double loss = validation_loss(*data_, i, config_.run.eval_batches, trained_);
      losses.insert(sets[i] == config_.run.best ? losses.begin() : losses.end(), {sets[i], loss});
    }
    return losses;
  }

  void validate(std::int64_t step) {
    if (config_.run.eval_batches == 0) return;
    const ValidationLosses losses = validation_losses();
    const bool is_best = watches_best() && best_.add({.step = step, .loss = losses.front().second});
    record_.validation(step, losses, is_best);
    for (const auto& [name, loss] : losses) {
      if (std::isfinite(loss)) continue;
      throw NumericsError(str("step ", step, ": the ", words_of(name), " is ", shortest(loss)),
                          {"the update of this step left weights that are not finite",
                           "lower optimizer.params.lr, or set gradient_clipping"});
    }
    if (!is_best || config_.run.save.empty()) return;
    save();
    if (trained_.is_root()) best_.saved(SavedModel::identity_of(config_.run.save));
  }

  void write_timeline() {
    const Phase writing(progress_, "writing the timeline", Files::Used);
    const train::Trainer& trainer = trained_.trainer();
    const measure::Recording recording =
        timeline_.gather(trainer.layout().mesh, trained_.trainer().program().executor().plan(),
                         trained_.communicator());
    if (!trained_.is_root()) return;
    for (ReportFile& each : files_of(recording)) {
      record_.replace(each.name, std::move(each.content));
    }
  }

  void finish_record() {
    if (!trained_.is_root()) return;
    const Phase writing(progress_, "writing the loss curve", Files::Used);
    if (ending_.code == ExitCode::Ok && !ending_.save_failure) {
      record_.note({.kind = RunEventKind::Finished, .step = trained_.trainer().steps_taken()});
    }
    record_.finish();
  }

  void save() { record_.tell(saved_model_->write(card())); }

  // Absent on other ranks than the first, and for models of penstock's own.
  std::optional<std::string> card() {
    if (!trained_.is_root() || !trained_.model().folder) return std::nullopt;
    return model_card(config_, trained_.model(),
                      {.step = trained_.trainer().steps_taken(),
                       .layout = layout_text(trained_.trainer()),
                       .data = data_->summary(),
                       .losses = record_.curve()});
  }

  Config config_;  // Has steps in place of epochs.
  const RunHooks& hooks_;
  BestLoss best_;
  execute::Progress progress_;
  InjectedFaults faults_;
  ConfiguredTrainer trained_;
  RunRecord record_;
  std::unique_ptr<RunData> data_;
  std::optional<SavedModel> saved_model_;
  std::optional<TextSamples> samples_;
  std::optional<RunCheckpoints> checkpoints_;
  std::optional<Adapting> adapting_;
  StopReasons stops_;
  Timeline timeline_;
  Ending ending_;
  const rank::Watch watch_;  // The first to go.
};

}  // namespace

ExitCode run(const config::ReadConfig& read, comm::Communicator& communicator, c10::Device device,
             const RunHooks& hooks) {
  return telling_others(communicator, [&] { return Run(read, communicator, device, hooks).go(); });
}

}  // namespace penstock::run
