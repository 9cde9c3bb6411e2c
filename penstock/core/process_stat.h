// What the kernel says of a process in /proc/PID/stat.
//
// The launcher describes processes by it; ranks without a pidfd see by it whether a peer lives.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace penstock {

struct ProcessStat {
  char state = '?';   // 'R', 'S', 'D', 'T' stopped, 't' traced, 'Z', 'X'.
  std::string start;  // Time at which it began; with the number, no other process has the same.

  bool has_ended() const { return state == 'Z' || state == 'X'; }
};

// Absent where there is no such process, or no /proc.
std::optional<ProcessStat> process_stat(std::int64_t pid);

}  // namespace penstock
