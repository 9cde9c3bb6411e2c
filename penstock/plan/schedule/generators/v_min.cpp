// ZB-V with about a third of its memory, for some bubble.
// Source: the paper of v_blocks.h.
#include "penstock/plan/schedule/generators/v_blocks.h"

namespace penstock::schedule {
namespace {

Offsets min_offsets(std::int32_t p, std::int32_t r) {
  const std::int32_t delay = p % 3 == 0 ? 2 : 0;  // Keeps the four apart modulo six.
  return {.forward = {r, 2 * p - 1 - r}, .input = {4 * p + delay - 1 - r, 2 * p + delay + r}};
}

Schedule make_v_min(const Sizes& sizes) {
  return squeeze("v_min", sizes,
                 {.activations_max = 2 * ((sizes.ranks + 4) / 3), .offsets = min_offsets});
}

}  // namespace

Generator v_min() {
  return {.position = 100,
          .name = "v_min",
          .summary = "as ZB-V with about a third of the memory",
          .constraints = "v = 2",
          .bubble = "at most 2(p-1)(f+b)/3 where m >= p",
          .peak = "at most 2 floor((p+4)/3)",
          .stages_per_rank = 2,
          .make = make_v_min,
          .objection = object_to_v_blocks};
}

}  // namespace penstock::schedule
