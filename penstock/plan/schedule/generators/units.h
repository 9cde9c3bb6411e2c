// The order in which interleaved schedules visit a rank's chunks.
//
// A unit is one microbatch on one chunk.  A group of microbatches passes chunk 0, then chunk 1 and
// so on; then comes the next group.  Backward, a group passes the chunks from the last to the
// first. Source: Narayanan et al., arXiv 2104.04473, section 2.2; group sizes as Megatron-core's
// microbatch_group_size_per_vp_stage and as torch's rounds.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/schedule/generators/generators.h"

namespace penstock::schedule {

struct Unit {
  std::int32_t chunk = 0;
  std::int32_t microbatch = 0;
};

// Sizes::microbatch_group, or torch's rule: max(1, microbatches / ranks) rounds of equal groups.
std::int32_t group_of(const Sizes& sizes);

// All units of a rank in the order of the forwards; the last group may be smaller.
std::vector<Unit> forward_units(const Sizes& sizes);
std::vector<Unit> backward_units(const Sizes& sizes);

// Why the microbatches do not fall into groups; "" when they do.
std::string objection_to_groups(const Sizes& sizes);

}  // namespace penstock::schedule
