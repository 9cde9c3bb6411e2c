#include "penstock/plan/lower/slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/support/random.h"

namespace penstock::lower {
namespace {

TEST(Slots, HandOutTheSmallestFreeNumber) {
  Slots slots;
  EXPECT_EQ(slots.take(), 0);
  EXPECT_EQ(slots.take(), 1);
  EXPECT_EQ(slots.take(), 2);
  slots.give_back(2);
  slots.give_back(0);
  EXPECT_EQ(slots.take(), 0);
  EXPECT_EQ(slots.take(), 2);
  EXPECT_EQ(slots.take(), 3);
  EXPECT_EQ(slots.count(), 4);
}

TEST(Slots, CountIsTheMostOutAtOnce) {
  testing_support::Random random;
  SCOPED_TRACE(random.seed_text());
  for (int trial = 0; trial < 50; ++trial) {
    Slots slots;
    std::set<std::int32_t> out;
    std::size_t most = 0;
    for (int i = 0; i < 200; ++i) {
      if (out.empty() || random.chance(0.55)) {
        EXPECT_TRUE(out.insert(slots.take()).second);
      } else {
        const auto given =
            std::next(out.begin(), static_cast<std::ptrdiff_t>(random.index_of(out.size())));
        slots.give_back(*given);
        out.erase(given);
      }
      most = std::max(most, out.size());
    }
    EXPECT_EQ(slots.count(), static_cast<std::int32_t>(most));
  }
}

}  // namespace
}  // namespace penstock::lower
