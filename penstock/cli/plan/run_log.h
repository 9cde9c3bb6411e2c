// What the launcher writes of a run into events.jsonl of its directory, while no rank runs.
//
// `penstock train` has one.  Rank 0 writes the other events (run/event_log.h).  Knows no processes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/config/config.h"
#include "penstock/core/output.h"
#include "penstock/launch/launcher.h"
#include "penstock/plan/measure/run_events.h"

namespace penstock::cli {

// Puts the record of an earlier run in directory `run` (metrics, events and samples) into a folder
// earlier-1, -2, ... there, and says so.  Called before any rank starts.  The record stays where
// the run goes on from a checkpoint of this directory.  It stays, too, where its job was started
// again: `restarts` times before this.
// Throws: ConfigError when it cannot be moved.
void begin_record(const config::Config& config, const std::string& run, std::int64_t restarts);

class RunLog {
 public:
  // `messages` hears, once, when an event cannot be written; the run goes on all the same.
  RunLog(std::string run, Output& messages);

  // The ranks have ended by an error, or were stopped as asked.  Of what rank 0 has told nothing is
  // written.  Nor is it of ranks that ended before they were ready, until they are started again.
  void ended(const launch::LaunchResult& result);
  void restarting(int attempt, double pause_seconds, std::int64_t ranks);
  // Notes that it is not started again, for a `reason`.  Returns: `exit_code`.
  int stopped(int exit_code, const std::string& reason);

 private:
  std::vector<measure::RunEvent> events() const;
  void write(measure::RunEvent event);
  void write_waiting();

  std::string run_;
  Output& messages_;
  const std::size_t earlier_;  // Events of earlier launches.
  bool has_told_ = false;
  std::vector<measure::RunEvent> waiting_;
  std::int64_t last_step_ = 0;
};

}  // namespace penstock::cli
