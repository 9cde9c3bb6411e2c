// The schedules penstock can write, a file each, and the registry that lists them.
//
// Each generator orders the compute of every rank; passes add the communication.  The registry is
// what `--help`, error messages and config names are made from.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/schedule/schedule.h"

namespace penstock::schedule {

struct Sizes {
  std::int32_t ranks = 1;
  std::int32_t stages_per_rank = 1;
  std::int32_t microbatches = 1;
};

// All forwards, then all backwards, microbatches in rising order in both.
// Peak activations: microbatches.  Bubble: (ranks - 1)(f + b).
// Source: Huang et al., GPipe, arXiv 1811.06965; backward order as torch's ScheduleGPipe.
Schedule gpipe(const Sizes& sizes);

// Warm-up of ranks - r forwards on rank r, then one backward, one forward in turn, then the rest of
// the backwards.  Peak activations on rank r: min(microbatches, ranks - r).  Bubble: as GPipe.
// Any number of microbatches.  Source: Narayanan et al., PipeDream-flush, arXiv 2006.09503.
Schedule one_f_one_b(const Sizes& sizes);

// All forwards and nothing else; purpose Forward.  Any placement of stages is s mod ranks.
Schedule forward_only(const Sizes& sizes);

struct Generator {
  std::string_view name;                  // "1f1b"
  std::vector<std::string_view> aliases;  // "Schedule1F1B"
  std::string_view summary;               // One line for --help.
  Schedule (*make)(const Sizes&);
};

const std::vector<Generator>& registry();

// Finds `name` in any case, by name or alias.
// Throws: ScheduleError for an unknown name, with the nearest ones, and for sizes that the schedule
// refuses, with the sizes that work.
Schedule make_schedule(std::string_view name, const Sizes& sizes);

}  // namespace penstock::schedule
