// Which sizes schedules refuse, and why; the registry names one of these for each of them.
//
// Each returns the first size that does not fit, its value and what would, or "" when all do.  They
// know nothing of how much memory a schedule takes to write out.
// REQUIRES, for all of them: ranks, stages_per_rank and microbatches of at least 1.
#pragma once
#include <string>

#include "penstock/schedule/generators/generators.h"

namespace penstock::schedule {

// Where any sizes do.
std::string object_to_none(const Sizes& sizes);

// One stage per rank: GPipe, 1F1B, ZB-H1, ZB-H2.
std::string object_to_many_stages(const Sizes& sizes);

// Any stages per rank, microbatches in groups: interleaved 1F1B and zero bubble.
std::string object_to_uneven_groups(const Sizes& sizes);

// The letter V, two stages per rank.  ZB-V can be fitted, V-Half and V-Min are squeezed, and
// DualPipeV needs as many microbatches as stages.
std::string object_to_zbv(const Sizes& sizes);
std::string object_to_v_blocks(const Sizes& sizes);
std::string object_to_dualpipev(const Sizes& sizes);

// Waves of two stages per rank.
std::string object_to_hanayo(const Sizes& sizes);

}  // namespace penstock::schedule
