// All forwards and nothing else, of stages that go round the ranks.
#include "penstock/schedule/generators/objections.h"
#include "penstock/schedule/generators/rows.h"

namespace penstock::schedule {
namespace {

Schedule make_forward_only(const Sizes& sizes) {
  Schedule schedule = write_rows("forward_only", sizes, in_a_loop, [&](Row& row) {
    for (std::int32_t chunk = 0; chunk < sizes.stages_per_rank; ++chunk) {
      for (std::int32_t m = 0; m < sizes.microbatches; ++m) row.add(Op::Forward, chunk, m);
    }
  });
  schedule.purpose = Purpose::Forward;
  return schedule;
}

}  // namespace

Generator forward_only() {
  return {.position = 130,
          .name = "forward_only",
          .aliases = {"_ScheduleForwardOnly", "inference"},
          .summary = "all forwards and nothing else: evaluation",
          .constraints = "any",
          .bubble = "(p-1)f/v where m >= p",
          .peak = "0",
          .purpose = Purpose::Forward,
          .make = make_forward_only,
          .objection = object_to_none};
}

}  // namespace penstock::schedule
