// What `penstock report` reads of a run directory: the schedule that ran, and its recording.
//
// Knows the names of the files (docs/run_directory.md); their formats belong to schedule/ and
// measure/.
#pragma once
#include <string>

#include "penstock/measure/recording.h"
#include "penstock/verify/verify.h"

namespace penstock::cli {

struct RunFiles {
  verify::VerifiedSchedule schedule;
  measure::Recording recording;
};

// Throws: ConfigError when it is no run directory, or has no timeline; ParseError and ScheduleError
// for files that are not as they were written.
RunFiles read_run(const std::string& folder);

}  // namespace penstock::cli
