// What the launcher has seen of its ranks, and the one root cause that it concludes from that.
//
// launcher.h enters events and asks after each one.  Pure: no process, socket or clock, so
// every rule below is unit-tested as a table.
// Units: *_ms are milliseconds since the launch.
//
// Root cause of a failure, first kind wins, then the earlier event, then the lower rank:
//   1. an error report with a cause of its own, or a death by a signal;
//   2. an unexplained exit, SIGABRT or SIGPIPE, or a report without a cause (code 1): these also
//      happen to ranks that stumble over another's death;
//   3. a program that ended without a word, under a shell that went on: no failure of itself;
//   4. a rank that stopped answering, when all others only report that they waited;
//   5. a report of a timeout (code 5), then of a lost peer (code 4).
// Root cause of a hang:
//   1. a rank that said hello and is silent for the heartbeat: a stopped one first;
//   2. no rank advanced for the longest of the ranks' limits: the ranks that wait for nobody, else
//      the ring of ranks that wait for each other, else, when all have finished their work, the
//      ranks that do not end.  A rank's limit is the disk's while it uses files, the heartbeat in a
//      step, and the start-up limit otherwise.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/launch/control_message.h"
#include "penstock/launch/process.h"

namespace penstock::launch {

// All that is known of one rank.
struct RankRecord {
  std::int64_t pid = 0;
  std::optional<char> state{};  // State of a process elsewhere; absent: process_state says it.
  bool was_started = true;
  bool said_hello = false;
  bool takes_stop = true;  // Said in its hello; else a signal stops it.
  bool done = false;       // Finished its work: must end within the start-up limit.
  bool said_bye = false;   // Goes on without the channel: only its exit is watched.
  ProgressReport progress{};
  std::optional<std::int64_t> last_step{};
  std::int64_t heard_ms = 0;     // Last message.
  std::int64_t advanced_ms = 0;  // Last change of the counter.
  std::int64_t unreadable = 0;   // Messages that do not follow the grammar.
  std::optional<ErrorReport> error{};
  std::int64_t error_ms = 0;
  // When its program ended without a word, whose shell goes on; absent: it has not.
  std::optional<std::int64_t> gone_ms{};
  std::optional<Ending> ending{};
  std::int64_t ending_ms = 0;

  // Whether its silence has a meaning.
  bool answers() const { return said_hello && !said_bye && !ending; }
  // It is asked to stop on its channel, and ends in good order then.
  bool stops_itself() const { return answers() && takes_stop; }
};

struct Limits {
  std::int64_t heartbeat_ms = 30'000;
  std::int64_t startup_ms = 300'000;
  std::int64_t disk_ms = 1'800'000;
};

struct Observation {
  std::vector<RankRecord> ranks{};
  Limits limits{};
  std::int64_t now_ms = 0;
  bool must_report = false;  // Every rank is to say hello within startup_ms.
  bool is_own = true;  // Ranks run penstock's own program: keys of its configuration are limits.
  std::optional<int> stop_signal{};  // Passed on to the ranks, which may end by it.
  // process_state() of process.h, or a test's.
  std::function<char(std::int64_t pid)> process_state{};
};

struct Verdict {
  std::optional<Rank> rank{};  // Absent when no single one is to blame.
  std::string root_cause{};    // "rank 2 was killed by SIGKILL; last seen at step 12, ...".
  std::vector<std::string> notes{};
  int exit_code = 0;
};

// Enters a message of a rank into its record.
void enter_message(RankRecord& record, const RankMessage& message, std::int64_t now_ms);

// A rank has failed: the time of the first such event, whatever its cause.
std::optional<std::int64_t> first_failure_ms(const Observation& seen);
// The root cause of the failures so far; nothing when no rank has failed.
std::optional<Verdict> find_failure(const Observation& seen);
// The root cause of a hang; nothing while every rank answers and someone advances.
std::optional<Verdict> find_hang(const Observation& seen);

// "step 12, instruction 1F3"; "step 12, waiting for rank 1 in 1RECV_B3 (2.8 s)"; "loading weights".
std::string describe_position(const RankRecord& record, std::int64_t now_ms);
// "3 other ranks were ended (2 by SIGTERM, 1 exited 4)"; "" when there are none.
std::string describe_other_endings(const std::vector<RankRecord>& ranks, std::optional<Rank> but);

}  // namespace penstock::launch
