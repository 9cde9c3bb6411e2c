// The hosts of a job, as a hostfile lists them: a line "NAME slots=N" each, and comments.
//
// selection.h chooses among them.  Knows no file: its text and its name come from the caller.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace penstock::hosts {

inline constexpr int kSlotsMax = 4096;
inline constexpr std::size_t kHostfileBytesMax = std::size_t{1} << 20;

struct Host {
  std::string name;    // Name that ssh takes.
  int slot_count = 1;  // Ranks that it takes, numbered from 0.
  friend bool operator==(const Host&, const Host&) = default;
};

// Hosts in the order of the text.  "max_slots=N", which MPI has, is passed over.
// Throws: ConfigError, which says all that is wrong, each with `name` and the line.
std::vector<Host> parse_hostfile(std::string_view text, const std::string& name);

// Whether `name` may be a host's: what ssh would take for an option, or a shell for anything else,
// is none.
bool is_host_name(std::string_view name);

}  // namespace penstock::hosts
