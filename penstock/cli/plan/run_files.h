// What `penstock report` reads of a run directory: the schedule that ran, its recording, the
// losses, and what happened to the run.
//
// Knows the names of the files (docs/run_directory.md); their formats belong to schedule/ and
// measure/.
#pragma once
#include <optional>
#include <string>

#include "penstock/plan/measure/recording.h"
#include "penstock/plan/measure/run_events.h"
#include "penstock/plan/render/loss_svg.h"
#include "penstock/verify/verify.h"

namespace penstock::cli {

struct RecordedRun {
  verify::VerifiedSchedule schedule;
  measure::Recording recording;
};

struct RunFiles {
  std::optional<RecordedRun> recorded;  // Absent: no step was recorded.
  render::LossCurve curve;              // Curve of metrics.jsonl, without marks.
  measure::RunEvents events;

  bool has_course() const { return !curve.train.empty() || !events.events.empty(); }
};

// Throws: ConfigError when it is no run directory; ParseError and ScheduleError for files that are
// not as they were written.  Of metrics and events, lines that cannot be read are left out.
RunFiles read_run(const std::string& folder);

// Throws: ConfigError that says how steps are recorded.
[[noreturn]] void refuse_unrecorded(const std::string& folder);

}  // namespace penstock::cli
