#include "penstock/run/run.h"

#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "penstock/core/text.h"
#include "penstock/plan/render/recording_trace.h"
#include "penstock/run/saved_model.h"
#include "penstock/runtime/rank/watch.h"
#include "penstock/runtime/run/adapting.h"
#include "penstock/runtime/run/configured_trainer.h"
#include "penstock/runtime/run/injected_faults.h"
#include "penstock/runtime/run/run_checkpoints.h"
#include "penstock/runtime/run/run_data.h"
#include "penstock/runtime/run/run_record.h"
#include "penstock/runtime/run/telling_others.h"
#include "penstock/runtime/run/text_samples.h"
#include "penstock/runtime/run/timeline.h"
#include "penstock/runtime/run/validation.h"
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
  std::optional<CheckpointError> save_failure;  // Failure of the last checkpoint.
  ExitCode code = ExitCode::Ok;
};

class Run {
 public:
  Run(const config::ReadConfig& read, comm::Communicator& communicator, c10::Device device,
      const RunHooks& hooks)
      : config_(read.config),
        hooks_(hooks),
        faults_(hooks.faults, communicator.rank(), hooks.start, progress_),
        trained_(config_, communicator, device, progress_),
        record_(read, hooks.messages, progress_, trained_.is_root()),
        stops_(config_.run, hooks),
        watch_(communicator, progress_, config_.launch) {}

  ExitCode go() {
    record_.lock_folders();
    read_inputs();
    build();
    record_.begin(trained_, *checkpoints_, *samples_, data_->summary());
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
    comm::Communicator& communicator = trained_.communicator();
    samples_->prepare(communicator, progress_);
    saved_model_.emplace(config_.run.save, trained_.model(), trained_.trainer(), communicator,
                         progress_);
    if (!config_.run.save.empty()) saved_model_->check_room();
    const auto tell = [this](const std::string& text) { record_.tell("penstock: " + text); };
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
  }

  void train() {
    const Phase training(progress_, "training");
    const std::int64_t first = trained_.trainer().steps_taken() + 1;
    const std::int64_t last_recorded = first + config_.run.timeline_steps - 1;
    for (std::int64_t step = first; step <= config_.run.steps; ++step) {
      const train::StepReport report = take_step(step, /*recorded=*/step <= last_recorded);
      if (step == config_.run.steps || report.words.stop) {
        ending_.last = report;
        ending_.is_last_recorded = step <= last_recorded;
        return;
      }
      if (step == last_recorded) write_timeline();
      after_step(report);
    }
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
    const std::int64_t interval = config_.run.eval_interval;
    if (interval > 0 && step % interval == 0) validate(step);
    if (samples_->is_due(step)) samples_->write(step, trained_.trainer(), progress_);
    adapting_->after(step);
    checkpoints_->after(report,
                        /*is_last=*/false);  // What goes on from it has all lines up to its step.
    const std::int64_t save_interval = config_.run.save_interval;
    if (save_interval > 0 && step % save_interval == 0) save();
  }

  // What was trained is on the disk before anything else can fail or hang.
  void keep_result() {
    record_.end_line();
    if (ending_.last) {
      try {
        checkpoints_->after(*ending_.last, /*is_last=*/true);
      } catch (const CheckpointError& error) {  // All ranks find it.
        ending_.save_failure = error;
      }
      if (ending_.last->words.stop) tell_stop();
    }
    if (config_.run.save.empty()) return;
    progress_.step.store(0, std::memory_order_relaxed);
    save();
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
      validate(step);
      if (samples_->any()) samples_->write(step, trained_.trainer(), progress_);
    }
    progress_.step.store(0, std::memory_order_relaxed);
  }

  void validate(std::int64_t step) {
    if (config_.run.eval_batches == 0) return;
    const Phase validating(progress_, "validating");
    const double loss = validation_loss(*data_, config_.run.eval_batches, trained_);
    record_.validation(step, loss);
    if (!std::isfinite(loss)) {
      throw NumericsError(str("step ", step, ": the validation loss is ", shortest(loss)),
                          {"the update of this step left weights that are not finite",
                           "lower optimizer.params.lr, or set gradient_clipping"});
    }
  }

  void write_timeline() {
    const Phase writing(progress_, "writing the timeline", Files::Used);
    const train::Trainer& trainer = trained_.trainer();
    const measure::Recording recording =
        timeline_.gather(trainer.layout().mesh, trained_.trainer().program().executor().plan(),
                         trained_.communicator());
    if (!trained_.is_root()) return;
    record_.replace("timeline.csv", measure::to_text(recording));
    record_.replace("timeline.json", render::chrome_trace(render::trace_of(recording)));
  }

  void finish_record() {
    if (!trained_.is_root()) return;
    const Phase writing(progress_, "writing the loss curve", Files::Used);
    if (ending_.code == ExitCode::Ok && !ending_.save_failure) {
      record_.note({.kind = RunEventKind::Finished, .step = trained_.trainer().steps_taken()});
    }
    record_.finish();
  }

  void save() { record_.tell(saved_model_->write()); }

  const Config& config_;
  const RunHooks& hooks_;
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
