#include "penstock/plan/paging/policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "penstock/core/text.h"
#include "tests/support/random.h"

namespace penstock::paging {
namespace {

using testing_support::Random;

Trace trace_of(std::int32_t pages, const std::vector<PageId>& uses) {
  Trace trace(pages);
  for (const PageId page : uses) trace.add(page);
  return trace;
}

Trace random_trace(Random& random, std::int32_t pages) {
  Trace trace(pages);
  for (std::int32_t i = random.between(1, 40); i-- > 0;) trace.add(random.between(0, pages - 1));
  return trace;
}

std::int64_t bytes_here(const std::vector<std::int64_t>& bytes, const Residents& residents) {
  std::int64_t sum = 0;
  for (std::size_t page = 0; page < bytes.size(); ++page) {
    if (residents.is_here[page]) sum += bytes[page];
  }
  return sum;
}

void apply(const Decision& decision, Residents& residents) {
  for (const PageId page : decision.drop) {
    EXPECT_TRUE(residents.is_here[static_cast<std::size_t>(page)]) << page;
    EXPECT_FALSE(residents.is_pinned[static_cast<std::size_t>(page)]) << page;
    residents.is_here[static_cast<std::size_t>(page)] = false;
  }
  for (const PageId page : decision.fetch) {
    EXPECT_FALSE(residents.is_here[static_cast<std::size_t>(page)]) << page;
    residents.is_here[static_cast<std::size_t>(page)] = true;
  }
}

// Whatever is pinned, and whether the trace is known or not.
TEST(Paging, TheUsedPageIsHereAndTheBudgetIsKeptButForWhatIsPinned) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int i = 0; i < 500; ++i) {
    const std::int32_t pages = random.between(1, 8);
    std::vector<std::int64_t> bytes;
    for (std::int32_t page = 0; page < pages; ++page) bytes.push_back(random.between(0, 9));
    const Limits limits{.budget_bytes = random.between(0, 30),
                        .prefetch_bytes = random.between(0, 20)};
    const Trace trace = random_trace(random, pages);
    Residents residents(bytes.size());
    for (std::size_t position = 0; position < trace.size(); ++position) {
      for (std::size_t page = 0; page < bytes.size(); ++page) {
        residents.is_pinned[page] = random.chance(0.2);
      }
      const auto used = static_cast<std::size_t>(trace[position]);
      const Residents before = residents;
      const Decision decision = random.chance(0.7)
                                    ? decide(bytes, trace, position, residents, limits)
                                    : decide_blindly(bytes, trace[position], residents, limits);
      apply(decision, residents);
      ASSERT_TRUE(residents.is_here[used]);
      ASSERT_EQ(std::ranges::count(decision.drop, trace[position]), 0);
      ASSERT_TRUE(before.is_here[used] || decision.fetch.at(0) == trace[position]);
      std::int64_t must_stay = 0;
      for (std::size_t page = 0; page < bytes.size(); ++page) {
        const bool stays = residents.is_pinned[page] && before.is_here[page];
        if (stays || page == used) must_stay += bytes[page];
      }
      ASSERT_LE(bytes_here(bytes, residents), std::max(limits.budget_bytes, must_stay));
      residents.last_use[used] = static_cast<std::int64_t>(position);
    }
  }
}

TEST(Paging, ThePrefetchOfAPageDropsNothingThatIsUsedBeforeIt) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  int drops = 0;
  for (int i = 0; i < 300; ++i) {
    const std::int32_t pages = random.between(2, 8);
    const std::vector<std::int64_t> bytes(static_cast<std::size_t>(pages), 1);
    const Limits limits{.budget_bytes = random.between(1, 6),
                        .prefetch_bytes = random.between(0, 8)};
    const Trace trace = random_trace(random, pages);
    Residents residents(bytes.size());
    for (std::size_t position = 0; position < trace.size(); ++position) {
      const auto next_use = [&](PageId page) {
        return trace.next_use(page, position + 1).value_or(trace.size());
      };
      const bool is_here = residents.is_here[static_cast<std::size_t>(trace[position])];
      const Decision decision = decide(bytes, trace, position, residents, limits);
      apply(decision, residents);
      if (!is_here || decision.fetch.empty()) continue;
      for (const PageId page : decision.drop) {
        EXPECT_GT(next_use(page), next_use(decision.fetch.front()));
        ++drops;
      }
    }
    Limits without = limits;
    without.prefetch_bytes = 0;
    EXPECT_LE(replay(bytes, trace, limits).faults, replay(bytes, trace, without).faults);
    EXPECT_LE(replay(bytes, trace, limits).peak_bytes, limits.budget_bytes);
  }
  EXPECT_GT(drops, 100);
}

// The fewest faults that any choice of what to drop has, by trying all of them.
std::int64_t fewest_faults(const Trace& trace, std::size_t position, std::set<PageId> here,
                           std::size_t room) {
  if (position == trace.size()) return 0;
  const PageId used = trace[position];
  if (here.contains(used)) return fewest_faults(trace, position + 1, here, room);
  here.insert(used);
  if (here.size() <= room) return 1 + fewest_faults(trace, position + 1, here, room);
  std::int64_t fewest = static_cast<std::int64_t>(trace.size());
  for (const PageId page : here) {
    if (page == used) continue;
    std::set<PageId> rest = here;
    rest.erase(page);
    fewest = std::min(fewest, 1 + fewest_faults(trace, position + 1, rest, room));
  }
  return room == 1 ? 1 + fewest_faults(trace, position + 1, {used}, room) : fewest;
}

TEST(Paging, OfPagesOfOneSizeTheFewestAreFetched) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int i = 0; i < 150; ++i) {
    const std::int32_t pages = random.between(2, 5);
    Trace trace(pages);
    for (int use = 0; use < 12; ++use) trace.add(random.between(0, pages - 1));
    const std::int32_t room = random.between(1, 4);
    const Replayed replayed = replay(std::vector<std::int64_t>(static_cast<std::size_t>(pages), 1),
                                     trace, {.budget_bytes = room});
    EXPECT_EQ(replayed.faults, fewest_faults(trace, 0, {}, static_cast<std::size_t>(room)));
  }
}

TEST(Paging, ForwardAndBackwardOverFourPagesWithRoomForTwo) {
  const Trace trace = trace_of(4, {0, 1, 2, 3, 3, 2, 1, 0});
  EXPECT_EQ(trace.size(), 7U) << "3 is used again at once";
  const std::vector<std::int64_t> bytes = {10, 10, 10, 10};
  // The last page of the forward is the first of the backward; one more is kept.
  EXPECT_EQ(replay(bytes, trace, {.budget_bytes = 20}),
            (Replayed{.uses = 7, .faults = 6, .drops = 4, .fetched_bytes = 60, .peak_bytes = 20}));
  EXPECT_EQ(replay(bytes, trace, {.budget_bytes = 20, .prefetch_bytes = 10}),
            (Replayed{.uses = 7,
                      .faults = 1,
                      .prefetches = 5,
                      .drops = 4,
                      .fetched_bytes = 60,
                      .peak_bytes = 20}));
  EXPECT_EQ(replay(bytes, trace, {.budget_bytes = 40}),
            (Replayed{.uses = 7, .faults = 4, .fetched_bytes = 40, .peak_bytes = 40}));
}

TEST(Paging, BlindlyWhatWasUsedLongestAgoGoesFirst) {
  Residents residents(4);
  residents.is_here = {true, true, true, false};
  residents.last_use = {5, 3, 4, -1};
  EXPECT_EQ(decide_blindly({1, 1, 1, 2}, 3, residents, {.budget_bytes = 3}),
            (Decision{.drop = {1, 2}, .fetch = {3}}));
}

TEST(Follower, FollowsTheLastStepUntilAUseIsAnother) {
  Follower follower(4);
  const auto step = [&](const std::vector<PageId>& uses) {
    follower.begin_step();
    std::vector<bool> known;
    for (const PageId page : uses) {
      follower.use(page);
      known.push_back(follower.trace() != nullptr);
    }
    follower.end_step();
    return known;
  };
  using Known = std::vector<bool>;
  EXPECT_EQ(step({0, 1, 2}), Known({false, false, false})) << "the first step is recorded";
  EXPECT_EQ(step({0, 1, 2}), Known({true, true, true}));
  EXPECT_EQ(step({0, 2, 1}), Known({true, false, false}));
  EXPECT_EQ(step({0, 2, 2, 1}), Known({true, true, true, true})) << "learned again";
  EXPECT_EQ(step({0, 2, 1, 3}), Known({true, true, true, false})) << "longer than the trace";
}

TEST(Follower, HashesTellUsesApart) {
  const auto hash_of = [](const std::vector<PageId>& uses) {
    Follower follower(300);
    follower.begin_step();
    for (const PageId page : uses) follower.use(page);
    return follower.hash();
  };
  EXPECT_EQ(hash_of({1, 2, 3}), hash_of({1, 2, 2, 3}));
  const std::set<std::uint64_t> hashes = {hash_of({}),     hash_of({1}),      hash_of({1, 2}),
                                          hash_of({2, 1}), hash_of({1, 258}), hash_of({2})};
  EXPECT_EQ(hashes.size(), 6U);
}

}  // namespace
}  // namespace penstock::paging
