// Every schedule of the registry at every small size that it takes, for tests of laws that hold for
// all of them.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>

#include "penstock/schedule/generators/generators.h"

namespace penstock::testing_support {

struct Sweep {
  std::int32_t ranks_max = 8;
  std::int32_t stages_per_rank_max = 4;
  std::int32_t microbatches_max = 24;
};

// check(sizes), in rising order, until one fails.
template <class Check>
void for_each_size(const Sweep& sweep, const Check& check) {
  for (std::int32_t ranks = 1; ranks <= sweep.ranks_max; ++ranks) {
    for (std::int32_t stages = 1; stages <= sweep.stages_per_rank_max; ++stages) {
      for (std::int32_t m = 1; m <= sweep.microbatches_max; ++m) {
        if (testing::Test::HasFatalFailure()) return;
        check(schedule::Sizes{.ranks = ranks, .stages_per_rank = stages, .microbatches = m});
      }
    }
  }
}

// check(generator, sizes), of the sizes that it takes.
template <class Check>
void for_each_size_of(const schedule::Generator& generator, const Sweep& sweep,
                      const Check& check) {
  for_each_size(sweep, [&](const schedule::Sizes& sizes) {
    if (generator.objection(sizes).empty()) check(generator, sizes);
  });
}

template <class Check>
void for_each_generated(const Sweep& sweep, const Check& check) {
  for (const auto& generator : schedule::registry()) for_each_size_of(generator, sweep, check);
}

}  // namespace penstock::testing_support
