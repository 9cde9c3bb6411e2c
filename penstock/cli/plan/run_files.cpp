#include "penstock/cli/plan/run_files.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/read_file.h"
#include "penstock/core/text.h"

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
  if (!has(folder, "schedule.csv")) {
    throw ConfigError(str(quoted, " is not a run directory: it has no schedule.csv"),
                      {"penstock train says at its start which one it writes"});
  }
  if (!has(folder, "timeline.csv")) {
    throw ConfigError(
        str("run directory ", quoted, " has no timeline.csv: its steps were not recorded"),
        {"train with --set run.timeline_steps=5, which records the first 5 steps"});
  }
}

}  // namespace

RunFiles read_run(const std::string& folder) {
  check_folder(folder);
  const auto path = [&](const char* name) { return (fs::path(folder) / name).string(); };
  const std::string timeline = path("timeline.csv");
  measure::Recording recording = measure::parse_recording(
      read_file("timeline", timeline, measure::kRecordingBytesMax), timeline);
  schedule::Schedule schedule = schedule::load_csv(path("schedule.csv"));
  schedule.name = recording.schedule.substr(0, recording.schedule.find('('));
  return {verify::VerifiedSchedule::from(std::move(schedule)), std::move(recording)};
}

}  // namespace penstock::cli
