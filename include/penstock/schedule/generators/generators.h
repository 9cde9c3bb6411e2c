// The registry of the schedules that penstock can write.
//
// A schedule is a file here, hanayo.cpp, which defines its row: `Generator hanayo()`.  The registry
// is all rows of the folder (cmake/schedules.cmake); a file beside a header of its name is none.
// What `--help`, error messages and config names are made from.  A generator orders the compute of
// every rank; passes add the communication.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/schedule/schedule.h"

namespace penstock::schedule {

// The program that a schedule gives where its published rule suits some sizes only.
enum class Rule : std::uint8_t {
  Published,  // The source's program, at every size.
  Fitted,     // A faster one that needs no more memory, where the source's is slow for its size.
};

// "published"
std::string_view to_string(Rule rule);

struct Sizes {
  std::int32_t ranks = 1;
  std::int32_t stages_per_rank = 1;
  std::int32_t microbatches = 1;
  // Interleaved schedules: microbatches that pass a chunk before the next one; absent: torch's
  // rule.
  std::optional<std::int32_t> microbatch_group = {};
  Rule rule = Rule::Published;
};

// The order in which each stage runs its B or W, which add the gradients of its weights.
enum class BackwardOrder : std::uint8_t {
  Rising,  // Microbatch 0, 1, 2 and so on: gradients have the bits of one process.
  Other,
};

// Symbols in the texts: p ranks, v stages per rank, m microbatches, n microbatches per group, r the
// rank; f, b, i, w the time of F, B, I, W of all of a rank's stages together.  The tests read them
// (tests/schedule/statement.h) and hold them against the programs.
struct Generator {
  std::int32_t position = 1000;                // Lists go by this, then by name.
  std::string_view name;                       // "1f1b"
  std::vector<std::string_view> aliases = {};  // "Schedule1F1B"
  std::string_view summary;                    // One line for --help.
  std::string_view constraints;                // Sizes that it takes: "v = 2, m >= 2p"
  std::string_view bubble;  // Makespan beyond m(f + b), where b is i + w; f = i = w where split.
  std::string_view peak;    // Most live activations of rank r, a stage and microbatch each.
  std::int32_t stages_per_rank = 1;  // Default, where the user names no number.
  Purpose purpose = Purpose::Train;  // Purpose of what it makes.
  BackwardOrder backwards = BackwardOrder::Rising;
  bool has_pairs = false;                  // Whether some of its programs have overlapped pairs.
  Schedule (*make)(const Sizes&);          // REQUIRES: no objection to the sizes.
  std::string (*objection)(const Sizes&);  // Names the size that does not fit, and why; "": all do.
};

// All schedules, in the order of their positions.
const std::vector<Generator>& registry();

// The generator of that name or alias, in any case, with or without the word Schedule, hyphens and
// underscores.
// Throws: ScheduleError for an unknown name, with the nearest ones.
const Generator& find_generator(std::string_view name);

// Throws: ScheduleError as find_generator, and for sizes that the schedule refuses, with the
// nearest ones that work.  By the name Schedule1F1B, torch's rule holds too: microbatches >= ranks.
Schedule make_schedule(std::string_view name, const Sizes& sizes);

// The registry as a table for people.
std::string registry_table();

}  // namespace penstock::schedule
