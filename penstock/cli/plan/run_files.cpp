#include "penstock/cli/plan/run_files.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/foreign_file.h"
#include "penstock/core/text.h"
#include "penstock/plan/measure/metrics_lines.h"
#include "penstock/plan/render/run_marks.h"
#include "penstock/plan/schedule/dialects.h"

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;

bool has(const std::string& folder, const char* name) {
  std::error_code error;
  return fs::exists(fs::path(folder) / name, error);
}

void check_folder(const std::string& folder) {
  const std::string quoted = quoted_path(folder);
  std::error_code error;
  if (!fs::exists(folder, error)) {
    throw ConfigError(str("run directory ", quoted, " does not exist"));
  }
  if (!fs::is_directory(folder, error)) {
    throw ConfigError(str(quoted, " is not a run directory: it is a file"));
  }
  if (!has(folder, "schedule.csv") && !has(folder, "schedule.json")) {
    throw ConfigError(str(quoted, " is not a run directory: it has no schedule.csv"),
                      {"penstock train says at its start which one it writes"});
  }
}

std::string path_of(const std::string& folder, const char* name) {
  return (fs::path(folder) / name).string();
}

RecordedRun read_recorded(const std::string& folder) {
  const std::string timeline = path_of(folder, measure::kTimelineFile);
  measure::Recording recording = measure::parse_recording(
      read_foreign_file("timeline", timeline, measure::kRecordingBytesMax), timeline);
  schedule::Schedule schedule =
      has(folder, "schedule.json")
          ? schedule::load_schedule(path_of(folder, "schedule.json")).schedule
          : schedule::load_csv(path_of(folder, "schedule.csv"));
  schedule.name = recording.schedule.substr(0, recording.schedule.find('('));
  return {verify::VerifiedSchedule::from(std::move(schedule)), std::move(recording)};
}

}  // namespace

RunFiles read_run(const std::string& folder) {
  check_folder(folder);
  RunFiles files;
  if (has(folder, measure::kTimelineFile)) files.recorded = read_recorded(folder);
  files.curve.title = folder;
  if (has(folder, measure::kMetricsFile)) {
    const std::string text = read_foreign_file("metrics", path_of(folder, measure::kMetricsFile),
                                               measure::kMetricsBytesMax);
    render::add_losses(files.curve, measure::metrics_lines(text));
  }
  if (has(folder, measure::kRunEventsFile)) {
    const std::string path = path_of(folder, measure::kRunEventsFile);
    files.events = measure::parse_run_events(
        read_foreign_file("events", path, measure::kRunEventsBytesMax), path);
  }
  return files;
}

void refuse_unrecorded(const std::string& folder) {
  throw ConfigError(str("run directory ", quoted_path(folder),
                        " has no timeline.csv: its steps were not recorded"),
                    {"train with --set run.timeline_steps=5, which records the first 5 steps"});
}

}  // namespace penstock::cli
