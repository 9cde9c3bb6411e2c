#include "penstock/schedule/generators/generators.h"

namespace penstock::schedule {

Schedule forward_only(const Sizes& sizes) {
  Schedule schedule{.name = "forward_only",
                    .purpose = Purpose::Forward,
                    .stages = sizes.ranks * sizes.stages_per_rank,
                    .microbatches = sizes.microbatches};
  for (std::int32_t rank = 0; rank < sizes.ranks; ++rank) {
    Program program;
    for (std::int32_t chunk = 0; chunk < sizes.stages_per_rank; ++chunk) {
      for (std::int32_t m = 0; m < sizes.microbatches; ++m) {
        program.push_back({StageId(chunk * sizes.ranks + rank), Op::Forward, Microbatch(m)});
      }
    }
    schedule.programs.push_back(std::move(program));
  }
  return schedule;
}

}  // namespace penstock::schedule
