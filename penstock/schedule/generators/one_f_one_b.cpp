#include <algorithm>

#include "penstock/schedule/generators/generators.h"

namespace penstock::schedule {

Schedule one_f_one_b(const Sizes& sizes) {
  Schedule schedule{.name = "1f1b", .stages = sizes.ranks, .microbatches = sizes.microbatches};
  for (std::int32_t rank = 0; rank < sizes.ranks; ++rank) {
    Program program;
    const auto add = [&](Op op, std::int32_t m) {
      program.push_back({StageId(rank), op, Microbatch(m)});
    };
    const std::int32_t warmup = std::min(sizes.microbatches, sizes.ranks - rank);
    for (std::int32_t m = 0; m < warmup; ++m) add(Op::Forward, m);
    for (std::int32_t m = 0; m < sizes.microbatches; ++m) {
      add(Op::Backward, m);
      if (warmup + m < sizes.microbatches) add(Op::Forward, warmup + m);
    }
    schedule.programs.push_back(std::move(program));
  }
  return schedule;
}

}  // namespace penstock::schedule
