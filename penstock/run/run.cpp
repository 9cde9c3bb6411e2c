#include "penstock/run/run.h"

#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <utility>

#include "penstock/config/resolve.h"
#include "penstock/config/write.h"
#include "penstock/core/atomic_file.h"
#include "penstock/core/foreign_file.h"
#include "penstock/core/output_lock.h"
#include "penstock/core/text.h"
#include "penstock/measure/metrics_lines.h"
#include "penstock/nn/gpt.h"
#include "penstock/offload/system_memory.h"
#include "penstock/rank/watch.h"
#include "penstock/render/recording_trace.h"
#include "penstock/render/schedule_svg.h"
#include "penstock/run/adapting.h"
#include "penstock/run/event_log.h"
#include "penstock/run/from_config.h"
#include "penstock/run/injected_faults.h"
#include "penstock/run/metrics.h"
#include "penstock/run/run_checkpoints.h"
#include "penstock/run/run_data.h"
#include "penstock/run/run_files.h"
#include "penstock/run/saved_model.h"
#include "penstock/run/telling_others.h"
#include "penstock/run/text_samples.h"
#include "penstock/run/timeline.h"
#include "penstock/schedule/json.h"
#include "penstock/simulate/simulate.h"
#include "penstock/train/handshake.h"
#include "penstock/train/trainer.h"
#include "penstock/weights/atomic_file.h"

namespace penstock::run {
namespace {

using config::Config;
using execute::Files;
using execute::Phase;
using measure::RunEventKind;

bool offloads(const train::OffloadOptions& options) {
  return options.states.place != offload::Place::Device ||
         options.parameters.place != offload::Place::Device;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class Run {
 public:
  Run(const config::ReadConfig& read, comm::Communicator& communicator, c10::Device device,
      const RunHooks& hooks)
      : read_(read),
        config_(read.config),
        communicator_(communicator),
        device_(device),
        hooks_(hooks),
        mesh_(config::resolve_mesh(config_.mesh, communicator.world_size())),
        batch_(config::resolve_batch(config_.batch, mesh_)) {}

  ExitCode go() {
    if (is_root()) lock_folders();
    load_model();
    load_data();
    build();
    if (is_root()) write_plan();
    try {
      train();
      keep_result();
      after_training();
    } catch (const NumericsError&) {
      checkpoints_->finish();  // All ranks find it.
      throw;
    }
    if (is_root()) finish_files();
    if (save_failure_) throw CheckpointError(*save_failure_);
    const Phase leaving(progress_, "leaving");
    const execute::WaitMark wait(progress_, "waiting for all ranks to be ready to leave");
    communicator_.barrier("end");
    faults_.finish();
    return exit_code_;
  }

 private:
  bool is_root() const { return communicator_.rank().value == 0; }
  std::string file(const char* name) const { return config_.run.directory + "/" + name; }
  std::int64_t samples_per_replica() const {
    return batch_.train_batch_size / mesh_.size(mesh::Role::OtherSamples);
  }

  // Locks the run's folders, unless the launcher has them locked, which lets its ranks in.
  void lock_folders() {
    for (const config::OutputFolder& folder :
         config::output_folders(config_, config_.run.directory)) {
      std::error_code ignored;  // What cannot be made cannot be locked.
      std::filesystem::create_directories(folder.path, ignored);
      locks_.push_back(
          OutputLock::of_folder(folder.path, folder.content, OutputLock::With::OwnRanks));
    }
  }

  void load_model() {
    const Phase reading(progress_, "reading the model's description", Files::Used);
    model_ = model_of(config_);
    if (!config_.run.save.empty()) SavedModel::check_folder(config_.run.save, model_);
  }

  void load_data() {
    const Phase reading(progress_, "reading data", Files::Used);
    data_ = open_data(config_, model_, batch_.train_batch_size, advanced());
    check_validation();
    samples_.emplace(config_, model_, *data_, hooks_, [this](const std::string& text) {
      if (metrics_) metrics_->finish();
      hooks_.results.write(text);
    });
  }

  // Reads what validation is going to read: behind the last step, an error would come too late.
  void check_validation() {
    double weights = 0;
    for (std::int64_t i = 0; i < config_.run.eval_batches; ++i) {
      weights += data_->validation_weight(i);
      progress_.advance();
    }
    if (weights > 0 || config_.run.eval_batches == 0) return;
    throw ConfigError("validation: no token of its samples counts",
                      {"give data.validation a corpus whose mask leaves some",
                       "to train without validation: --set run.eval_batches=0"});
  }

  void build() {
    const Phase building(progress_, "building the model");
    train::TrainerOptions options = options_of(config_, mesh_, batch_);
    options.device = device_;
    options.progress = &progress_;
    options.facts = facts();
    options.loss_scale = data_->loss_scale();
    if (offloads(options.offload)) offload::give_freed_memory_back();
    trainer_.emplace(options, model_.layers, model_.loss, communicator_);
    samples_->prepare(communicator_, progress_);
    saved_model_.emplace(config_.run.save, model_, *trainer_, communicator_, progress_);
    if (!config_.run.save.empty()) saved_model_->check_room();
    checkpoints_.emplace(
        config_, *trainer_, communicator_, progress_, options.facts,
        [this](const std::string& text) {
          if (is_root()) tell("penstock: " + text);
        },
        [this](measure::RunEvent event) { note(std::move(event)); });
    adapting_.emplace(
        config_, device_, *trainer_, communicator_, progress_,
        Adapting::Ears{
            .tell = [this](const std::string& text) { tell("penstock: " + text); },
            .note = [this](measure::RunEvent event) { note(std::move(event)); },
            .write = [this](const std::string& name,
                            std::string content) { files_->replace(name, std::move(content)); }});
    checkpoints_->resume();
    adapting_->resume();
  }

  // What every rank has read for itself.
  train::Facts facts() const { return facts_of(config_) + model_.facts + data_->facts(); }

  void write_plan() {
    const Phase writing(progress_, "writing the plan of the run", Files::Used);
    remove_unfinished_files(config_.run.directory);
    weights::write_atomically(file("config.resolved.json"), {config::to_text(read_)});
    const verify::VerifiedSchedule& schedule = trainer_->layout().schedule;
    weights::write_atomically(file("schedule.svg"),
                              {render::schedule_svg(schedule, simulate::simulate(schedule))});
    write_program(schedule.schedule());
    files_.emplace(config_.run.directory,
                   [this](const std::string& text) { tell("penstock: " + text); });
    events_.emplace(*files_, config_.run.directory,
                    [this](const std::string& text) { tell("penstock: " + text); });
    const bool goes_on_here = checkpoints_->goes_on_here();
    const std::string earlier =
        goes_on_here || events_->goes_on() ? earlier_lines(measure::kMetricsFile) : std::string();
    metrics_.emplace(*files_, hooks_.messages, config_.run.steps,
                     batch_.train_batch_size * config_.model.sequence_length,
                     config_.steps_per_print, trainer_->steps_taken(),
                     goes_on_here ? std::string_view(earlier) : std::string_view());
    samples_->begin_files(*files_, goes_on_here
                                       ? measure::lines_up_to(earlier_lines(measure::kSamplesFile),
                                                              trainer_->steps_taken())
                                       : std::string());
    note_start(measure::steps_behind(trainer_->steps_taken(), earlier));
    hooks_.messages.write(summary());
  }

  // Writes the program as CSV, or as JSON, which also says that a stage has several ranks.  An
  // earlier start's file goes: `penstock report` would take it for this one's.
  void write_program(const schedule::Schedule& program) const {
    const bool is_of_one = program.replicas == 1;
    weights::write_atomically(file(is_of_one ? "schedule.csv" : "schedule.json"),
                              {is_of_one ? schedule::to_csv(program) : schedule::to_json(program)});
    std::error_code ignored;
    std::filesystem::remove(file(is_of_one ? "schedule.json" : "schedule.csv"), ignored);
  }

  // Adds an event; only rank 0 has a log.
  void note(measure::RunEvent event) {
    if (!events_) return;
    const execute::WorkMark writing(progress_, "writing events", Files::Used);
    events_->add(std::move(event));
  }

  void note_start(std::int64_t lost_steps) {
    const auto& resumed = checkpoints_->resumed();
    note({.kind = RunEventKind::Started,
          .step = trainer_->steps_taken(),
          .ranks = communicator_.world_size(),
          .layout = layout_text(),
          .lost_steps = resumed ? 0 : lost_steps});
    if (!resumed) return;
    note({.kind = RunEventKind::Resumed,
          .step = resumed->step,
          .folder = resumed->folder,
          .lost_steps = lost_steps,
          .passed_over = resumed->passed_over});
  }

  std::string layout_text() const {
    return str(mesh::to_string(trainer_->layout().mesh.shape()), ", ",
               schedule::title(trainer_->layout().schedule.schedule()));
  }

  // What the directory has, of whatever run.
  std::string earlier_lines(const char* name) const {
    std::error_code error;
    const std::string path = file(name);
    if (!std::filesystem::exists(path, error)) return {};
    return read_foreign_file("lines of an earlier start", path, measure::kMetricsBytesMax);
  }

  std::string summary() const {
    return str("penstock: ", layout_text(), ", ", batch_.train_batch_size, " samples a step\n",
               partition::to_string(trainer_->layout().partition, nn::meta_of(trainer_->layers())),
               "data: ", data_->summary(), "\n", "run directory: ", config_.run.directory, "\n");
  }

  // A line of its own, also after a progress line that is being rewritten.
  void tell(const std::string& line) {
    if (metrics_) metrics_->finish();
    hooks_.messages.write(line + "\n");
  }

  std::function<void()> advanced() {
    return [this] { progress_.advance(); };
  }

  void train() {
    const Phase training(progress_, "training");
    const std::int64_t first = trainer_->steps_taken() + 1;
    const std::int64_t last_recorded = first + config_.run.timeline_steps - 1;
    for (std::int64_t step = first; step <= config_.run.steps; ++step) {
      const auto start = std::chrono::steady_clock::now();
      const bool recorded = step <= last_recorded;
      if (recorded) {
        trainer_->program().executor().record_next_run();
      } else {
        adapting_->before();
      }
      const std::optional<std::int64_t> program = adapting_->program();
      const bool is_asked = hooks_.stop_requested && hooks_.stop_requested();
      if (is_asked || is_time_over()) trainer_->words().stop = true;
      checkpoints_->ask();
      const train::StepReport report = train_step(step);
      if (metrics_) {
        const execute::WorkMark writing(progress_, "writing metrics", Files::Used);
        metrics_->step(report, seconds_since(start), program);
      }
      if (recorded) timeline_.add(step, trainer_->program().executor());
      const bool last = step == config_.run.steps || report.words.stop;
      if (last) {
        last_report_ = report;
        is_last_recorded_ = recorded;
        return;
      }
      if (step == last_recorded) write_timeline();
      const std::int64_t interval = config_.run.eval_interval;
      if (interval > 0 && step % interval == 0) validate(step);
      if (samples_->is_due(step)) samples_->write(step, *trainer_, progress_);
      adapting_->after(step);
      checkpoints_->after(report,
                          /*is_last=*/false);  // What goes on from it has all lines up to its step.
      const std::int64_t save_interval = config_.run.save_interval;
      if (save_interval > 0 && step % save_interval == 0) save();
    }
  }

  // What was trained is on the disk before anything else can fail or hang.
  void keep_result() {
    if (metrics_) metrics_->finish();
    if (last_report_) {
      try {
        checkpoints_->after(*last_report_, /*is_last=*/true);
      } catch (const CheckpointError& error) {  // All ranks find it.
        save_failure_ = error;
      }
      if (last_report_->words.stop) tell_stop();
    }
    if (config_.run.save.empty()) return;
    progress_.step.store(0, std::memory_order_relaxed);
    save();
  }

  void tell_stop() {
    const auto asked = hooks_.stop_requested ? hooks_.stop_requested() : std::nullopt;
    exit_code_ = asked.value_or(ExitCode::Preempted);
    const char* const why = is_time_over() ? "run.minutes are over" : "as asked";
    if (is_root()) {
      tell(str("stopped after step ", last_report_->step, ", ", why, checkpoints_->how_to_go_on()));
    }
    note({.kind = RunEventKind::Stopped,
          .step = last_report_->step,
          .reason = why,
          .exit_code = static_cast<std::int64_t>(exit_code_)});
  }

  // Ends training.  Called, too, for a run that goes on from its last step, and was ended here
  // before.
  void after_training() {
    const std::int64_t step = trainer_->steps_taken();
    progress_.step.store(step, std::memory_order_relaxed);
    if (is_last_recorded_) write_timeline();
    if (exit_code_ == ExitCode::Ok) {
      validate(step);
      if (samples_->any()) samples_->write(step, *trainer_, progress_);
    }
    progress_.step.store(0, std::memory_order_relaxed);
  }

  bool is_time_over() const {
    const double seconds = hooks_.earlier_seconds + seconds_since(begun_);
    return config_.run.minutes > 0 && seconds >= 60 * config_.run.minutes;
  }

  train::StepReport train_step(std::int64_t step) {
    const Batch batch = data_->training(step, first_sample(), samples_per_replica());
    return trainer_->step(batch.input, batch.target);
  }

  std::int64_t first_sample() const {
    return trainer_->rank_model().groups().other_samples.here * samples_per_replica();
  }

  void validate(std::int64_t step) {
    if (config_.run.eval_batches == 0) return;
    const Phase validating(progress_, "validating");
    double sum = 0.0, weights = 0.0;
    for (std::int64_t i = 0; i < config_.run.eval_batches; ++i) {
      const double weight = data_->validation_weight(i);
      if (weight == 0) continue;  // Zero on every rank alike.
      const Batch batch = data_->validation(i, first_sample(), samples_per_replica());
      sum += weight * trainer_->evaluate(batch.input, batch.target);
      weights += weight;
    }
    const double loss = sum / weights;
    if (metrics_) {
      const execute::WorkMark writing(progress_, "writing metrics", Files::Used);
      metrics_->validation(step, loss);
    }
    if (!std::isfinite(loss)) {
      throw NumericsError(str("step ", step, ": the validation loss is ", shortest(loss)),
                          {"the update of this step left weights that are not finite",
                           "lower optimizer.params.lr, or set gradient_clipping"});
    }
  }

  void write_timeline() {
    const Phase writing(progress_, "writing the timeline", Files::Used);
    const measure::Recording recording = timeline_.gather(
        trainer_->layout().mesh, trainer_->program().executor().plan(), communicator_);
    if (!is_root()) return;
    files_->replace("timeline.csv", measure::to_text(recording));
    files_->replace("timeline.json", render::chrome_trace(render::trace_of(recording)));
  }

  void finish_files() {
    const Phase writing(progress_, "writing the loss curve", Files::Used);
    if (exit_code_ == ExitCode::Ok && !save_failure_) {
      note({.kind = RunEventKind::Finished, .step = trainer_->steps_taken()});
    }
    render::LossCurve curve = metrics_->curve();
    curve.title = config_.run.directory;
    curve.marks = events_->marks();
    files_->replace("loss.svg", render::loss_svg(curve));
    files_->finish();
  }

  void save() {
    const std::string line = saved_model_->write();
    if (is_root()) tell(line);
  }

  const config::ReadConfig& read_;
  const Config& config_;
  comm::Communicator& communicator_;
  c10::Device device_;
  const RunHooks& hooks_;
  mesh::Shape mesh_;
  config::Batch batch_;
  execute::Progress progress_;
  InjectedFaults faults_{hooks_.faults, communicator_.rank(), hooks_.start, progress_};
  Model model_;
  std::unique_ptr<RunData> data_;
  std::optional<train::Trainer> trainer_;
  std::optional<SavedModel> saved_model_;
  std::optional<TextSamples> samples_;
  std::optional<RunCheckpoints> checkpoints_;
  std::optional<Adapting> adapting_;
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  std::optional<RunFiles> files_;  // Absent except on rank 0, as the next.
  std::optional<Metrics> metrics_;
  std::optional<EventLog> events_;
  std::vector<OutputLock> locks_;
  Timeline timeline_;
  bool is_last_recorded_ = false;                 // The last step is in it.
  std::optional<train::StepReport> last_report_;  // Report of a step that this start has taken.
  std::optional<CheckpointError> save_failure_;   // Failure of the last checkpoint.
  ExitCode exit_code_ = ExitCode::Ok;
  const rank::Watch watch_{communicator_, progress_, config_.launch};  // The first to go.
};

}  // namespace

ExitCode run(const config::ReadConfig& read, comm::Communicator& communicator, c10::Device device,
             const RunHooks& hooks) {
  return telling_others(communicator, [&] { return Run(read, communicator, device, hooks).go(); });
}

}  // namespace penstock::run
