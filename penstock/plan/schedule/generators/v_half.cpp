// ZB-V with about half of its memory, for some bubble.
// Source: the paper of v_blocks.h.
#include "penstock/plan/schedule/generators/v_blocks.h"

namespace penstock::schedule {
namespace {

Offsets half_offsets(std::int32_t p, std::int32_t r) {
  const std::int32_t delay = p % 2 == 0 ? 3 : 0;
  return {.forward = {2 * r, 3 * p - r - 2},
          .input = {6 * p + delay - r - 2, 3 * p + delay + 2 * r - 1}};
}

Schedule make_v_half(const Sizes& sizes) {
  return squeeze("v_half", sizes,
                 {.activations_max = 2 * ((sizes.ranks + 2) / 2), .offsets = half_offsets});
}

}  // namespace

Generator v_half() {
  return {.position = 90,
          .name = "v_half",
          .summary = "as ZB-V with about half the memory",
          .constraints = "v = 2",
          .bubble = "at most (p-1)(f+b)/2 where m >= p",
          .peak = "at most 2 floor((p+2)/2)",
          .stages_per_rank = 2,
          .make = make_v_half,
          .objection = object_to_v_blocks};
}

}  // namespace penstock::schedule
