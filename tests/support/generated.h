// Every schedule of the registry at every small size that it takes, for tests of laws that hold for
// all of them.
#pragma once
#include <cstdint>

#include "penstock/schedule/generators/generators.h"

namespace penstock::testing_support {

struct Sweep {
  std::int32_t ranks_max = 8;
  std::int32_t stages_per_rank_max = 4;
  std::int32_t microbatches_max = 24;
};

// check(generator, sizes), in rising order of sizes.
template <class Check>
void for_each_size_of(const schedule::Generator& generator, const Sweep& sweep,
                      const Check& check) {
  for (std::int32_t ranks = 1; ranks <= sweep.ranks_max; ++ranks) {
    for (std::int32_t stages = 1; stages <= sweep.stages_per_rank_max; ++stages) {
      for (std::int32_t m = 1; m <= sweep.microbatches_max; ++m) {
        const schedule::Sizes sizes{.ranks = ranks, .stages_per_rank = stages, .microbatches = m};
        if (generator.objection(sizes).empty()) check(generator, sizes);
      }
    }
  }
}

template <class Check>
void for_each_generated(const Sweep& sweep, const Check& check) {
  for (const auto& generator : schedule::registry()) for_each_size_of(generator, sweep, check);
}

}  // namespace penstock::testing_support
