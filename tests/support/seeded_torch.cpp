// Torch's own generator begins every test with the same seed: in C++ a process draws one.
//
// PENSTOCK_SEED=n replaces the seed (random.h).
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include "tests/support/random.h"

namespace {

class SeedsTorch : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& /*test*/) override {
    at::manual_seed(penstock::testing_support::Random::seed_from_environment());
  }
};

const bool kSeeds = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new SeedsTorch);  // gtest deletes it.
  return true;
}();

}  // namespace
