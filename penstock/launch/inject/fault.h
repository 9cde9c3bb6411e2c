// Failures that a user asks for, to see a run survive them.
//
// `penstock train --inject` reads them; run/injected_faults.h makes them happen.  Knows no
// processes.
// Text form: KIND:KEY=VALUE,...: "kill:rank=1,step=7,at=SEND_B".  docs/injected_faults.md has all.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/ids.h"

namespace penstock::inject {

struct Fault {
  enum class Kind : std::uint8_t {
    Kill,       // SIGKILL.
    Stop,       // SIGSTOP: the process is there, and does nothing any more.
    Delay,      // It sleeps.
    Slow,       // It sleeps whenever it has run such an action, from the step on.
    Exception,  // An Error is thrown.
    NoSpace,    // The next write of a file that appears whole, as a checkpoint's does, finds none.
  };
  Kind kind = Kind::Kill;
  Rank rank;
  // The step, at whose beginning or a place in which it happens; nothing: where the rank first
  // comes to the place.
  std::optional<std::int64_t> step;
  // A word of places(), an op ("SEND_B"), or an action ("1SEND_B3").
  std::string at = "step";
  std::int64_t start = 1;  // Start of the run: 2 is its first restart.
  // Delay, Slow: how long.  Kill, Stop: how long after it comes to the place.
  double seconds = 0;
  std::optional<std::int64_t> until;  // Slow: the last step that is slow.
  friend bool operator==(const Fault&, const Fault&) = default;
};

// A place of a rank that is no instruction.
struct Place {
  std::string_view word;  // Word in a fault's text.
  std::string_view name;  // Name as execute::Progress says it.
  bool is_in_step = true;
};
const std::vector<Place>& places();

// Throws: ConfigError, which names the text, what is wrong and what is allowed.
Fault parse_fault(std::string_view text);
// parse_fault(to_string(f)) == f.
std::string to_string(const Fault& fault);

// Throws: ConfigError for a rank that a run of `world_size` ranks does not have.
void check_ranks(const std::vector<Fault>& faults, std::int64_t world_size);

// Takes out the faults of ranks that a run of `world_size` ranks does not have.
void keep_ranks(std::vector<Fault>& faults, std::int64_t world_size);

// Whether a Slow fault happens in that step.
bool is_slow_in(const Fault& fault, std::int64_t step);

// Whether a fault's `at` means the place `name`, which is a Place's or an action's text.
bool is_at(const Fault& fault, std::string_view name);

}  // namespace penstock::inject
