// What a step cost in a window, which is some steps that follow each other: the numbers by which
// all ranks decide alike.
//
// Each rank has its own part of them (window.h); run/ shares the parts as vectors of numbers, and
// whoever decides reads the whole.  Knows no schedule and no events.
// Units: milliseconds.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/plan/measure/fit.h"

namespace penstock::adapt {

using measure::Quartiles;

// Times for which each op of one microbatch held its rank on one stage; absent: it did not run.
struct StageTimes {
  std::optional<Quartiles> forward, backward, input, weight;

  // Sum of a forward and a backward, whole or in halves.  REQUIRES: both ran.
  Quartiles total() const;
};

struct WindowCosts {
  std::int64_t first_step = 0;  // Counts from 1.
  std::int64_t last_step = 0;
  std::vector<StageTimes> stages;
  // Times from the first instruction of a step to the end of the last, by rank of the pipe.
  std::vector<std::optional<Quartiles>> ranks;
  std::optional<double> latency;  // A message's; absent: nobody waited for one.

  // The middle of the slowest rank's steps.
  Quartiles step() const;
};

// Writes every number at a place of its own, and zeros for what is absent: the sum of the vectors
// of ranks that have different parts is the vector of all parts.  Steps are left out.
// Law: from_numbers(to_numbers(c), c.stages.size(), c.ranks.size()) is c, but for its steps.
std::vector<double> to_numbers(const WindowCosts& costs);
WindowCosts from_numbers(const std::vector<double>& numbers, std::size_t stages, std::size_t ranks);

// Takes, at each place, the number of the slowest replica.  The vectors are those of one rank's
// replicas.
std::vector<double> slowest(const std::vector<std::vector<double>>& of_replicas);

}  // namespace penstock::adapt
