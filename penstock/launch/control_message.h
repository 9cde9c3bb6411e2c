// The messages between a rank and the launcher, and their text form.
//
// control.h writes a rank's side, launcher.h the launcher's.  Knows no socket and no clock.
// Text form: one line a message: a verb, then tab-separated fields.  A tab, newline or backslash in
// a field is written \t, \n, \\.  A field is at most 4 KiB long.
// Parsers are strict (a verb's exact fields, or nothing): what a rank sends is data, not trusted.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "penstock/core/error.h"
#include "penstock/core/ids.h"

namespace penstock::launch {

inline constexpr std::size_t kMessageBytesMax = 32768;
inline constexpr std::size_t kTextBytesMax = 4096;  // Limit on one field, before escaping.

// What a rank is doing, as of the moment it was asked.
struct ProgressReport {
  std::uint64_t counter = 0;           // Instructions finished since the start; never goes down.
  std::optional<std::int64_t> step{};  // The step being run; absent outside one: start-up, saving.
  std::string phase{};                 // "loading weights", "training", "updating parameters".
  std::string doing{};                 // The instruction, as the plan prints it: "1B3".
  bool waiting = false;                // Waits for a message or a collective; does not compute.
  std::optional<Rank> waiting_for{};   // The peer; absent for a group.
  std::int64_t waiting_ms = 0;         // Milliseconds of waiting so far.
  bool uses_files = false;             // A call may block for as long as a disk does.
  friend bool operator==(const ProgressReport&, const ProgressReport&) = default;
};

// Why a rank ends.  The launcher knows whose it is by the socket that it came on.
struct ErrorReport {
  std::optional<std::int64_t> step{};
  std::string instruction{};  // Empty: outside the plan.
  std::string message{};      // Error::what(), notes included.
  ExitCode exit_code = ExitCode::Failure;
  friend bool operator==(const ErrorReport&, const ErrorReport&) = default;
};

// The first message: from here on the rank's silence means something.  Said once more where it has
// changed.
struct Hello {
  bool takes_stop = true;  // A rank that does not is asked to stop by a signal.
  friend bool operator==(const Hello&, const Hello&) = default;
};
// The work is finished; from here on the rank need not make progress.
struct Done {
  friend bool operator==(const Done&, const Done&) = default;
};
// The channel ends while the process goes on; from here on only its exit is watched.
struct Bye {
  friend bool operator==(const Bye&, const Bye&) = default;
};
// The process that spoke for the rank has ended without a bye: the launcher finds it out, under a
// shell for one, which goes on.
struct Gone {
  friend bool operator==(const Gone&, const Gone&) = default;
};
using RankMessage = std::variant<Hello, ProgressReport, ErrorReport, Done, Bye, Gone>;

// Another rank failed: end now.
struct Abort {
  std::string root_cause{};
  friend bool operator==(const Abort&, const Abort&) = default;
};
// Finish the step, save, and exit with this code: Interrupted or Preempted.
struct Stop {
  ExitCode exit_code = ExitCode::Interrupted;
  friend bool operator==(const Stop&, const Stop&) = default;
};
using LauncherMessage = std::variant<Abort, Stop>;

// Inverse of the parsers for texts of at most kTextBytesMax; longer ones are cut and end in "...".
std::string encode(const RankMessage& message);
std::string encode(const LauncherMessage& message);

// Nothing for anything but a line that encode() could have written.
std::optional<RankMessage> parse_rank_message(std::string_view line);
std::optional<LauncherMessage> parse_launcher_message(std::string_view line);

// `text` with control characters but newline and tab replaced by '?', so that printing a rank's
// words cannot drive the terminal.
std::string printable(std::string_view text);

}  // namespace penstock::launch
