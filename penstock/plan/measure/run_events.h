// What happened to a run: it started, saved, failed, came back and ended; and the lines that say
// so.
//
// Rank 0 and the launcher append them to events.jsonl of the run directory (docs/run_directory.md).
// run_history.h makes parts of a run of them.  Knows no files, and no clock: who makes an event
// gives it its time.
// Units: seconds.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::measure {

enum class RunEventKind : std::uint8_t {
  Started,         // All ranks are there; the first step comes next.
  Resumed,         // The run goes on from a checkpoint; follows Started.
  Saved,           // A checkpoint has its name.
  SaveFailed,      // It has none.
  Failed,          // The ranks have ended by an error.
  Restarting,      // The launcher starts them again; follows Failed.
  CostsChanged,    // Stages take another time than before.
  ProgramChanged,  // The ranks go on with another order of actions.
  ProgramJudged,   // The new order is kept or not, after some steps of it.
  Stopped,         // The run ended as asked, before the last step.
  Finished,
};

// One event. kinds() in run_events.cpp says which members a kind has; the others are as they are
// here.
struct RunEvent {
  RunEventKind kind = RunEventKind::Started;
  std::string time;       // Text of utc_text().
  std::int64_t step = 0;  // Steps that were taken, or are in the checkpoint.
  std::int64_t ranks = 0;
  std::string layout;
  std::string device;  // Device that rank 0 computes on, and what carries its messages.
  std::string folder;  // Folder of the checkpoint.
  // Steps that were taken already, and are done again; of Started where no Resumed follows.
  std::int64_t lost_steps = 0;
  std::vector<std::string> passed_over;  // Newer checkpoints: why each could not be read.
  double seconds = 0;                    // Seconds from the begin of the save to its name.
  std::string reason;                    // One line; of Failed the root cause.
  std::string file;                      // File of the program, in the run directory.
  std::int64_t exit_code = 0;
  bool before_ready = false;  // No Started is of the ranks that failed.
  // Starts in a row without a new checkpoint, from 1.  0: the first one with fewer ranks.
  std::int64_t attempt = 0;
  double pause_seconds = 0;  // Pause before the start.
  friend bool operator==(const RunEvent&, const RunEvent&) = default;
};

struct RunEvents {
  std::vector<RunEvent> events;  // Sorted as in the file.
  std::int64_t unknown = 0;      // Lines of kinds that this version does not know.
  std::int64_t unreadable = 0;   // Lines that are no events.
  std::string why_unreadable;    // Place, key and expectation of the first of these lines.
  friend bool operator==(const RunEvents&, const RunEvents&) = default;
};

inline constexpr const char* kRunEventsFile = "events.jsonl";
inline constexpr std::size_t kRunEventsBytesMax = std::size_t{256} << 20;
inline constexpr std::int64_t kRunEventNumberMax = 1'000'000'000'000'000;  // Limit on each number.

// "saved".
std::string_view to_string(RunEventKind kind);

// Whether any ranks of the run were ready: the metrics in its directory are the run's then.
bool has_started(std::span<const RunEvent> events);

// One JSON object and a line feed.
// Law: parse_run_events(to_line(e), ...).events == {e}, of fields that its kind has.
std::string to_line(const RunEvent& event);

// Text behind the last line feed is a line that was cut short, and counts for nothing.  Kinds and
// keys that this version does not know are passed over, and so are lines that cannot be read.
// `name` is the file's, for why_unreadable.
RunEvents parse_run_events(std::string_view text, const std::string& name);

}  // namespace penstock::measure
