#include "penstock/cli/plan/run_log.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "penstock/config/resolve.h"
#include "penstock/core/error.h"
#include "penstock/core/read_file.h"
#include "penstock/core/text.h"
#include "penstock/core/utc_time.h"
#include "penstock/measure/metrics_lines.h"

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;
using measure::RunEvent;
using measure::RunEventKind;

std::string events_path(const std::string& run) { return run + "/" + measure::kRunEventsFile; }

bool goes_on(const config::Config& config, const std::string& run) {
  const std::string& from = config.checkpoint.resume;
  if (from.empty() || from == "auto") return !from.empty();
  std::error_code error;
  return fs::equivalent(fs::path(from).parent_path(),
                        config::checkpoint_directory(config.checkpoint, run), error);
}

// The last step that has a line; 0: none has.
std::int64_t last_step_in(const std::string& run) {
  constexpr std::streamoff kTail = std::streamoff{64} << 10;
  std::ifstream file(run + "/" + measure::kMetricsFile, std::ios::binary | std::ios::ate);
  if (!file) return 0;
  file.seekg(std::max<std::streamoff>(0, static_cast<std::streamoff>(file.tellg()) - kTail));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const auto lines = measure::metrics_lines(text);
  return lines.empty() ? 0 : lines.back().step;
}

}  // namespace

void begin_events(const config::Config& config, const std::string& run) {
  if (goes_on(config, run)) return;
  std::error_code error;
  fs::remove(events_path(run), error);
  if (!error) return;
  throw ConfigError(str("cannot remove the events of an earlier run, ",
                        quoted_path(events_path(run)), ": ", error.message()),
                    {"choose another run directory with --run"});
}

RunLog::RunLog(std::string run, Output& messages)
    : run_(std::move(run)), messages_(messages), file_(events_path(run_)) {}

// What cannot be read, rank 0 tells.
std::vector<RunEvent> RunLog::events() const {
  try {
    const std::string path = events_path(run_);
    const std::string text = read_file("events", path, measure::kRunEventsBytesMax);
    return measure::parse_run_events(text, path).events;
  } catch (const Error&) {
    return {};
  }
}

void RunLog::write(RunEvent event) {
  file_.append(measure::to_line(event));
  if (file_.failure().empty() || std::exchange(has_told_, true)) return;
  messages_.write(str("penstock: cannot write ", quoted_path(events_path(run_)),
                      " now: ", file_.failure(), "; the run goes on without it\n"));
}

void RunLog::write_waiting() {
  for (RunEvent& event : std::exchange(waiting_, {})) write(std::move(event));
}

void RunLog::failed(const launch::LaunchResult& result) {
  const std::vector<RunEvent> all = events();
  const auto is_start = [](const RunEvent& event) { return event.kind == RunEventKind::Started; };
  const bool has_told_stop = !all.empty() && all.back().kind == RunEventKind::Stopped &&
                             all.back().exit_code == result.exit_code;
  if (has_told_stop) return;
  const bool has_started = std::ranges::any_of(all, is_start);
  last_step_ = has_started ? last_step_in(run_) : 0;
  waiting_.push_back({.kind = RunEventKind::Failed,
                      .time = utc_text(std::chrono::system_clock::now()),
                      .step = last_step_,
                      .reason = result.root_cause,
                      .exit_code = result.exit_code});
  if (has_started) write_waiting();
}

void RunLog::restarting(int attempt, double pause_seconds, std::int64_t ranks) {
  write_waiting();
  write({.kind = RunEventKind::Restarting,
         .time = utc_text(std::chrono::system_clock::now()),
         .ranks = ranks,
         .attempt = attempt,
         .pause_seconds = pause_seconds});
}

int RunLog::stopped(int exit_code) {
  write({.kind = RunEventKind::Stopped,
         .time = utc_text(std::chrono::system_clock::now()),
         .step = last_step_,
         .reason = "as asked, before it was started again",
         .exit_code = exit_code});
  return exit_code;
}

}  // namespace penstock::cli
