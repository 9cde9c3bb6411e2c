// A pipeline schedule: one program per rank, plus the sizes it was written for.
//
// Generators and load_csv() make it; verify turns it into a VerifiedSchedule; the printers below
// are its text forms, and json.h has one more.  A rank here is a position on the mesh's pipe axis.
// A Schedule may be wrong in any way: only verify knows.
//
// Programs of several replicas, of which ranks take over work of others, are one Schedule, too.
// All microbatches of all replicas have numbers of their own.  Each passes a stage on one of the
// ranks that have a copy of it (homes.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/schedule/action.h"

namespace penstock::schedule {

enum class Purpose : std::uint8_t {
  Train,    // Every stage runs each microbatch forward and backward.
  Forward,  // Forward only: evaluation and generation.
};

struct Schedule {
  std::string name;  // Name for people: "1f1b", or the file it came from.
  Purpose purpose = Purpose::Train;
  std::int32_t stages = 0;
  // Microbatches of a step, of all replicas whose programs these are.
  std::int32_t microbatches = 0;
  std::int32_t replicas = 1;      // Ranks that may have a copy of a stage.
  std::vector<Program> programs;  // Programs by rank.

  std::int32_t ranks() const { return static_cast<std::int32_t>(programs.size()); }
  friend bool operator==(const Schedule&, const Schedule&) = default;
};

// True when the schedule says where to communicate, false when it only orders the compute.
bool is_lowered(const Schedule& schedule);

// "1f1b(ranks=2, stages=2, microbatches=8)": how messages name a schedule; with the number of
// replicas where there is more than one.
std::string title(const Schedule& schedule);

// A line per rank: "rank 0: 0F0 0F1 0B0 ...".
std::string grid(const Schedule& schedule);

// torch's CSV: a row per rank, actions joined by commas.
// Law: parse_csv(to_csv(s)).programs == s.programs, unless s has no action at all, or more than
// parse_csv takes.
std::string to_csv(const Schedule& schedule);

// Limit on a file with a schedule, in any dialect.
inline constexpr std::size_t kFileBytesMax = std::size_t{1} << 30;

// What torch calls the formats of its CSV files.
enum class FileFormat : std::uint8_t {
  ComputeOnly,   // An order, to which messages are still added: no SEND or RECV.
  ComputeComms,  // A program that runs as it stands: any action.
};

// Throws: ParseError for a SEND or RECV in a format that has none.
void check_fits(const Action& action, FileFormat format);

// Blank lines at the end are no ranks; an idle last rank has a comma.
// Empty cells (idle slots) are dropped; parse_timetable() keeps them.  Sizes and purpose are those
// of set_sizes_from_programs().
// Throws: ParseError with `name`, line, column of the action, and what was expected; for a byte
// order mark or a NUL byte; for more than 1 GiB, 2^20 rows, or 2^19 cells in a row.
Schedule parse_csv(std::string_view text, const std::string& name,
                   FileFormat format = FileFormat::ComputeComms);

// Throws: ParseError as above; ConfigError when the file cannot be read.
Schedule load_csv(const std::string& path, FileFormat format = FileFormat::ComputeComms);

// Stages and microbatches from the largest number that appears; Train when any backward does.
void set_sizes_from_programs(Schedule& schedule);

}  // namespace penstock::schedule
