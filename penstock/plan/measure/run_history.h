// The parts of a run: from each start of its ranks to their end, with what came between.  An end of
// ranks that were not ready for a step is a part, too.
//
// Made from the run's events; render/ marks them on the loss curve, and `penstock report` says them
// in lines.  Knows no files.
// Invariant: a part that ended by Failed, Stopped or Finished says so; one that another part
// follows without such a word ended Unsaid.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "penstock/plan/measure/run_events.h"

namespace penstock::measure {

enum class PartEnd : std::uint8_t {
  Open,    // It still runs, or ended without a word.
  Unsaid,  // It ended without a word, and another part follows.
  Failed,
  Stopped,
  Finished,
};

struct RunPart {
  bool has_started = false;  // False: its ranks ended before they were ready for a step.
  std::int64_t after_step = 0;
  std::int64_t ranks = 0;
  std::string folder;            // Folder of the checkpoint that it goes on from; empty: none.
  std::int64_t passed_over = 0;  // Newer checkpoints that could not be read.
  // Steps that the parts before it had taken already, and that this one takes again.
  std::int64_t steps_again = 0;
  PartEnd end = PartEnd::Open;
  std::int64_t last_step = 0;  // Last step that was taken when it ended.
  std::string reason;          // One line: why it ended.
  std::int64_t exit_code = 0;
};

struct FailedSave {
  std::int64_t step = 0;
  std::string reason;
};

struct RunHistory {
  std::vector<RunPart> parts;
  std::vector<std::int64_t> saved;  // Steps, rising, each once.
  std::vector<FailedSave> failed_saves;
};

RunHistory history_of(std::span<const RunEvent> events);

// "rank 3 was killed by SIGKILL", without what the rank did then.
std::string short_reason(const RunPart& part);
// How part `index` ended and how the run went on: "after step 57, 7 steps done again: rank 3 was
// killed by SIGKILL".  The cause, which may be long, comes last.
// REQUIRES: another part follows it.
std::string break_text(const RunHistory& history, std::size_t index);
// How the last part ended: "finished after step 200".
// REQUIRES: there is a part.
std::string end_text(const RunHistory& history);

// All of it for people, a thought a line; none of a run without events.
std::vector<std::string> lines_of(const RunHistory& history);

}  // namespace penstock::measure
