// One child process in a process group of its own, and what the kernel says about a process.
//
// Used by launcher.h.  Does not know ranks, messages or deadlines.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/file_descriptor.h"

namespace penstock::launch {

struct ProcessOptions {
  std::string path{};                      // Path of the file to execute.
  std::vector<std::string> arguments{};    // argv, the name included.
  std::vector<std::string> environment{};  // "NAME=value".
  std::vector<int> inherited{};            // Descriptors the child keeps, under the same numbers.
  int input = -1;                          // Its stdin; -1: /dev/null.
  int output = -1;                         // Its stdout and stderr; -1: this process's own, or
                                           // /dev/null for one that was closed here.
  int errors = -1;                         // Its stderr; -1: as `output` says.
};

// A running child.  The kernel kills it (SIGKILL) when the thread that started it ends.
struct Process {
  pid_t pid = 0;           // The process, and its process group.
  FileDescriptor pidfd{};  // Readable when it ends; empty where the kernel has no pidfd.
};

// Starts a child: own process group, no descriptors but the ones named.
// Throws ConfigError when it cannot be started or executed.
Process start_process(const ProcessOptions& options);

// How a process ended.
struct Ending {
  enum class Kind : std::uint8_t { Exited, Signalled };
  Kind kind = Kind::Exited;
  int value = 0;  // Exit code or signal number.
  friend bool operator==(const Ending&, const Ending&) = default;
};

// "exited 4", "SIGKILL".
std::string to_string(const Ending& ending);
// "SIGKILL"; "signal 40" when it has no name.
std::string signal_name(int signal);

// Whether the child has ended, without reaping it: until reap(), its pid and its group are its own.
bool has_ended(pid_t pid);
// Waits for the end of a child and forgets it.
Ending reap(pid_t pid);
// Signals every process of the group, and its first process.
void signal_group(pid_t pid, int signal);

// The state letter of /proc/PID/stat: 'R', 'S', 'D', 'T' stopped, 't' traced, 'Z'; '?' when
// unknown.
char process_state(std::int64_t pid);
// "is stopped by SIGSTOP", "sleeps": the predicate for that letter.
std::string describe_process_state(char state);

// How often the kernel's out-of-memory killer struck in this process's cgroup (version 2 or 1), or
// on the whole machine where no cgroup counts; nothing when nobody counts.
std::optional<std::int64_t> oom_kills();
// The number after the word "oom_kill" that begins a line.
std::optional<std::int64_t> parse_oom_kills(std::string_view text);

}  // namespace penstock::launch
