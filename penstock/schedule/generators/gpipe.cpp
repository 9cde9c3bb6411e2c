#include "penstock/schedule/generators/generators.h"

namespace penstock::schedule {

Schedule gpipe(const Sizes& sizes) {
  Schedule schedule{.name = "gpipe", .stages = sizes.ranks, .microbatches = sizes.microbatches};
  for (std::int32_t rank = 0; rank < sizes.ranks; ++rank) {
    Program program;
    for (const Op op : {Op::Forward, Op::Backward}) {
      for (std::int32_t m = 0; m < sizes.microbatches; ++m) {
        program.push_back({StageId(rank), op, Microbatch(m)});
      }
    }
    schedule.programs.push_back(std::move(program));
  }
  return schedule;
}

}  // namespace penstock::schedule
