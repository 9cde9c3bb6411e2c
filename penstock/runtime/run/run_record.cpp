#include "penstock/runtime/run/run_record.h"

#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "penstock/core/atomic_file.h"
#include "penstock/core/foreign_file.h"
#include "penstock/core/text.h"
#include "penstock/plan/config/resolve.h"
#include "penstock/plan/config/write.h"
#include "penstock/plan/measure/metrics_lines.h"
#include "penstock/plan/render/loss_svg.h"
#include "penstock/runtime/rank/device.h"
#include "penstock/runtime/run/report_files.h"
#include "penstock/runtime/weights/atomic_file.h"

namespace penstock::run {
namespace {

using execute::Files;
using execute::Phase;
using measure::RunEventKind;

std::string device_text(config::Device wanted, ConfiguredTrainer& trained) {
  const std::string messages = trained.communicator().transports();
  const stage::Stage& stage = trained.trainer().rank_model().stages().front();
  return str(rank::device_text(wanted, stage.device()),
             messages.empty() ? "" : str("; messages by ", messages));
}

}  // namespace

std::string layout_text(const train::Trainer& trainer) {
  return str(mesh::to_string(trainer.layout().mesh.shape()), ", ",
             schedule::title(trainer.layout().schedule.schedule()));
}

RunRecord::RunRecord(const config::ReadConfig& read, Output& messages, execute::Progress& progress,
                     bool is_root)
    : read_(read), messages_(messages), progress_(progress), is_root_(is_root) {}

void RunRecord::lock_folders() {
  if (!is_root_) return;
  for (const config::OutputFolder& folder :
       config::output_folders(read_.config, read_.config.run.directory)) {
    std::error_code ignored;  // What cannot be made cannot be locked.
    std::filesystem::create_directories(folder.path, ignored);
    locks_.push_back(
        OutputLock::of_folder(folder.path, folder.content, OutputLock::With::OwnRanks));
  }
}

// What the directory has, of whatever run.
std::string RunRecord::earlier_lines(const char* name) const {
  std::error_code error;
  const std::string path = file(name);
  if (!std::filesystem::exists(path, error)) return {};
  return read_foreign_file("lines of an earlier start", path, measure::kMetricsBytesMax);
}

void RunRecord::write_plan(const train::Trainer& trainer) const {
  weights::write_atomically(file("config.resolved.json"), {config::to_text(read_)});
  write_program(read_.config.run.directory, trainer.layout().schedule);
}

void RunRecord::begin(ConfiguredTrainer& trained, const RunCheckpoints& checkpoints,
                      TextSamples& samples, const Course& course) {
  if (!is_root_) return;
  const Phase writing(progress_, "writing the plan of the run", Files::Used);
  const config::Config& config = read_.config;
  const train::Trainer& trainer = trained.trainer();
  remove_unfinished_files(config.run.directory);
  write_plan(trainer);
  const auto tell_trouble = [this](const std::string& text) { tell("penstock: " + text); };
  files_.emplace(config.run.directory, tell_trouble);
  events_.emplace(*files_, config.run.directory, tell_trouble);
  const std::int64_t taken = trainer.steps_taken();
  const bool goes_on_here = checkpoints.goes_on_here();
  const std::string earlier =
      goes_on_here || events_->goes_on() ? earlier_lines(measure::kMetricsFile) : std::string();
  metrics_.emplace(
      *files_, messages_,
      MetricsOptions{.steps = course.steps,
                     .tokens_per_step = trained.batch_size() * config.model.sequence_length,
                     .steps_per_print = config.steps_per_print,
                     .resumed_step = taken,
                     .epochs_per_step = course.epochs_per_step},
      goes_on_here ? std::string_view(earlier) : std::string_view());
  samples.begin_files(
      *files_, goes_on_here ? measure::lines_up_to(earlier_lines(measure::kSamplesFile), taken)
                            : std::string());
  const std::string device = device_text(config.launch.device, trained);
  note_start(trainer, device, checkpoints, measure::steps_behind(taken, earlier));
  messages_.write(
      str("penstock: ", layout_text(trainer), ", ", trained.batch_size(), " samples a step\n",
          partition::to_string(trainer.layout().partition, nn::meta_of(trainer.layers())),
          "device: ", device, "\n", "data: ", course.data, "\n", trained.model().summary,
          "run directory: ", config.run.directory, "\n"));
}

void RunRecord::note_start(const train::Trainer& trainer, const std::string& device,
                           const RunCheckpoints& checkpoints, std::int64_t lost_steps) {
  const auto& resumed = checkpoints.resumed();
  note({.kind = RunEventKind::Started,
        .step = trainer.steps_taken(),
        .ranks = trainer.layout().mesh.world_size(),
        .layout = layout_text(trainer),
        .device = device,
        .lost_steps = resumed ? 0 : lost_steps});
  if (!resumed) return;
  note({.kind = RunEventKind::Resumed,
        .step = resumed->step,
        .folder = resumed->folder,
        .lost_steps = lost_steps,
        .passed_over = resumed->passed_over});
}

void RunRecord::note(measure::RunEvent event) {
  if (!events_) return;
  const execute::WorkMark writing(progress_, "writing events", Files::Used);
  events_->add(std::move(event));
}

void RunRecord::tell(const std::string& line) {
  if (!is_root_) return;
  end_line();
  messages_.write(line + "\n");
}

void RunRecord::end_line() {
  if (metrics_) metrics_->finish();
}

void RunRecord::step(const train::StepReport& report, double seconds,
                     std::optional<std::int64_t> program) {
  if (!metrics_) return;
  const execute::WorkMark writing(progress_, "writing metrics", Files::Used);
  metrics_->step(report, seconds, program);
}

void RunRecord::validation(std::int64_t step, const ValidationLosses& losses, bool is_best) {
  if (!metrics_) return;
  const execute::WorkMark writing(progress_, "writing metrics", Files::Used);
  metrics_->validation(step, losses, is_best);
}

void RunRecord::replace(const std::string& name, std::string content) {
  if (files_) files_->replace(name, std::move(content));
}

void RunRecord::finish() {
  if (!files_) return;
  render::LossCurve curve = metrics_->curve();
  curve.title = read_.config.run.directory;
  curve.marks = events_->marks();
  files_->replace("loss.svg", render::loss_svg(curve));
  files_->finish();
}

}  // namespace penstock::run
