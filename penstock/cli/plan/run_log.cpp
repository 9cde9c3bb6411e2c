#include "penstock/cli/plan/run_log.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/foreign_file.h"
#include "penstock/core/growing_file.h"
#include "penstock/core/program_output.h"
#include "penstock/core/read_at.h"
#include "penstock/core/text.h"
#include "penstock/core/utc_time.h"
#include "penstock/files/checkpoint/checkpoint_directory.h"
#include "penstock/plan/config/resolve.h"
#include "penstock/plan/measure/metrics_lines.h"

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;
using measure::RunEvent;
using measure::RunEventKind;

std::string events_path(const std::string& run) { return run + "/" + measure::kRunEventsFile; }

// A directory that cannot be read is told by the ranks.
bool has_steps(const std::string& checkpoints) {
  try {
    return !checkpoint::steps_in(checkpoints).empty();
  } catch (const CheckpointError&) {
    return true;
  }
}

bool goes_on(const config::Config& config, const std::string& run) {
  const std::string& from = config.checkpoint.resume;
  const std::string checkpoints = config::checkpoint_directory(config.checkpoint, run);
  if (from == "auto") return has_steps(checkpoints);
  return !from.empty() && checkpoint::is_in(from, checkpoints);
}

// The files of an earlier run that grow line by line, and have any.
std::vector<std::string> record_in(const std::string& run) {
  std::vector<std::string> names;
  for (const char* const name :
       {measure::kMetricsFile, measure::kRunEventsFile, measure::kSamplesFile}) {
    std::error_code error;
    const std::uintmax_t bytes = fs::file_size(run + "/" + name, error);
    if (!error && bytes > 0) names.emplace_back(name);
  }
  return names;
}

std::string free_folder(const std::string& run) {
  std::error_code error;
  std::string folder;
  for (int i = 1; folder.empty() || fs::exists(folder, error); ++i) {
    folder = str(run, "/earlier-", i);
  }
  return folder;
}

// The last step that has a line; 0: none has.
std::int64_t last_step_in(const std::string& run) {
  constexpr std::uint64_t kTail = std::uint64_t{64} << 10;
  const ForeignFile opened = open_foreign_file(run + "/" + measure::kMetricsFile);
  std::string text(std::min(opened.bytes, kTail), '\0');
  const auto first = static_cast<std::int64_t>(opened.bytes - text.size());
  text.resize(read_at(opened.file.get(), first, std::as_writable_bytes(std::span(text))).bytes);
  const auto lines = measure::metrics_lines(text);
  return lines.empty() ? 0 : lines.back().step;
}

bool is_of_stop(const launch::LaunchResult& result) {
  return result.stop_asked && (result.exit_code == static_cast<int>(ExitCode::Preempted) ||
                               result.exit_code == static_cast<int>(ExitCode::Interrupted));
}

// Whether rank 0 has written that the run ended so.
bool is_told(const RunEvent& last, const launch::LaunchResult& result) {
  if (last.kind == RunEventKind::Finished) return is_of_stop(result);
  return last.kind == RunEventKind::Stopped &&
         (is_of_stop(result) || last.exit_code == result.exit_code);
}

// "by SIGTERM": that it stopped is said already.
std::string reason_of_stop(const launch::LaunchResult& result) {
  constexpr std::string_view kStopped = "stopped ";
  return result.root_cause.substr(result.root_cause.starts_with(kStopped) ? kStopped.size() : 0);
}

}  // namespace

void begin_record(const config::Config& config, const std::string& run, std::int64_t restarts) {
  if (restarts > 0 || goes_on(config, run)) return;
  const std::vector<std::string> names = record_in(run);
  if (names.empty()) return;
  const std::string kept = free_folder(run);
  std::error_code error;
  fs::create_directory(kept, error);
  for (const std::string& name : names) {
    if (!error) fs::rename(run + "/" + name, kept + "/" + name, error);
  }
  if (error) {
    throw ConfigError(str("cannot keep the record of an earlier run in ", quoted_path(kept), ": ",
                          error.message()),
                      {"choose another run directory with --run"});
  }
  write_message(str("penstock: ", quoted_path(run),
                    " has the record of an earlier run; it is kept in ", quoted_path(kept)));
}

RunLog::RunLog(std::string run, Output& messages)
    : run_(std::move(run)), messages_(messages), earlier_(events().size()) {}

// What cannot be read, rank 0 tells.
std::vector<RunEvent> RunLog::events() const {
  try {
    const std::string path = events_path(run_);
    const std::string text = read_foreign_file("events", path, measure::kRunEventsBytesMax);
    return measure::parse_run_events(text, path).events;
  } catch (const Error&) {
    return {};
  }
}

// Rank 0 writes the file, too: what an earlier write has left here is of an older end of it.
void RunLog::write(RunEvent event) {
  GrowingFile file(events_path(run_));
  file.append(measure::to_line(event));
  if (file.failure().empty() || std::exchange(has_told_, true)) return;
  messages_.write(str("penstock: cannot write ", quoted_path(events_path(run_)),
                      " now: ", file.failure(), "; the run goes on without it\n"));
}

void RunLog::write_waiting() {
  for (RunEvent& event : std::exchange(waiting_, {})) write(std::move(event));
}

void RunLog::ended(const launch::LaunchResult& result) {
  const std::vector<RunEvent> all = events();
  const auto own = std::span(all).subspan(std::min(earlier_, all.size()));
  if (!own.empty() && is_told(own.back(), result)) return;
  const bool was_ready = !own.empty() && own.back().kind != RunEventKind::Restarting;
  last_step_ = measure::has_started(all) ? last_step_in(run_) : 0;
  const bool is_stop = is_of_stop(result);
  waiting_.push_back({.kind = is_stop ? RunEventKind::Stopped : RunEventKind::Failed,
                      .time = utc_text(std::chrono::system_clock::now()),
                      .step = last_step_,
                      .reason = is_stop ? reason_of_stop(result) : result.root_cause,
                      .exit_code = result.exit_code,
                      .before_ready = !is_stop && !was_ready});
  if (!own.empty()) write_waiting();
}

void RunLog::restarting(int attempt, double pause_seconds, std::int64_t ranks) {
  write_waiting();
  write({.kind = RunEventKind::Restarting,
         .time = utc_text(std::chrono::system_clock::now()),
         .ranks = ranks,
         .attempt = attempt,
         .pause_seconds = pause_seconds});
}

int RunLog::stopped(int exit_code, const std::string& reason) {
  write({.kind = RunEventKind::Stopped,
         .time = utc_text(std::chrono::system_clock::now()),
         .step = last_step_,
         .reason = reason,
         .exit_code = exit_code});
  return exit_code;
}

}  // namespace penstock::cli
