// All forwards, then all backwards, microbatches in rising order in both.
// Source: Huang et al., GPipe, arXiv 1811.06965; backward order as torch's ScheduleGPipe.
#include "penstock/schedule/generators/objections.h"
#include "penstock/schedule/generators/rows.h"

namespace penstock::schedule {
namespace {

Schedule make_gpipe(const Sizes& sizes) {
  return write_rows("gpipe", sizes, in_a_loop, [&](Row& row) {
    for (const Op op : {Op::Forward, Op::Backward}) {
      for (std::int32_t m = 0; m < sizes.microbatches; ++m) row.add(op, 0, m);
    }
  });
}

}  // namespace

Generator gpipe() {
  return {.position = 10,
          .name = "gpipe",
          .aliases = {"ScheduleGPipe"},
          .summary = "all forwards, then all backwards",
          .constraints = "v = 1",
          .bubble = "(p-1)(f+b)",
          .peak = "m",
          .make = make_gpipe,
          .objection = object_to_many_stages};
}

}  // namespace penstock::schedule
