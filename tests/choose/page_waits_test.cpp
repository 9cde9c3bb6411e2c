// What passes wait for parameters that come before they are used.
#include "penstock/plan/choose/page_waits.h"

#include <gtest/gtest.h>

namespace penstock::choose {
namespace {

// Three pages that take 4 s each to come, and 10 s to compute with.
const std::vector<PageUse> kUses(3, {.bytes = 4, .seconds = 10});
constexpr PageLink kLink{.latency = 1, .seconds_per_byte = 1};

TEST(PageWaits, EachPageIsWaitedForWhereNothingIsFetchedAhead) {
  EXPECT_DOUBLE_EQ(page_waits(kUses, kLink), 3 * (4 + 1));
}

TEST(PageWaits, AFetchAheadIsHiddenByWhatIsComputed) {
  PageLink link = kLink;
  link.prefetch_bytes = 4;
  EXPECT_DOUBLE_EQ(page_waits(kUses, link), 4 + 1);
  link.prefetch_bytes = 3;  // The next page is larger.
  EXPECT_DOUBLE_EQ(page_waits(kUses, link), 3 * (4 + 1));
}

TEST(PageWaits, PagesShareTheLink) {
  PageLink link{.seconds_per_byte = 5, .prefetch_bytes = 8};
  EXPECT_DOUBLE_EQ(page_waits(kUses, link), 3 * 20 - 2 * 10);
}

TEST(PageWaits, PagesThatAreHereAreNotAwaited) {
  PageLink link = kLink;
  link.here_bytes = 7;  // Of the first page, and of a part of the second.
  EXPECT_DOUBLE_EQ(page_waits(kUses, link), 2 * (4 + 1));
  link.here_bytes = 12;
  EXPECT_DOUBLE_EQ(page_waits(kUses, link), 0);
}

TEST(PageWaits, APieceIsCopiedAheadOfItsPage) {
  PageLink link = kLink;
  link.copy_seconds_per_byte = 0.25;
  EXPECT_DOUBLE_EQ(page_waits(kUses, link), 3 * (4 + 1 + 1));
}

}  // namespace
}  // namespace penstock::choose
