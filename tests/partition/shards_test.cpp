#include "penstock/partition/shards.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "penstock/core/text.h"
#include "tests/support/random.h"

namespace penstock::partition {
namespace {

using testing_support::Random;

std::vector<ShardedParameter> random_parameters(Random& random) {
  const std::vector<std::pair<std::string, std::int64_t>> types = {
      {"float32", 4}, {"bfloat16", 2}, {"float64", 8}};
  std::vector<ShardedParameter> parameters(static_cast<std::size_t>(random.between(0, 12)));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& [type, bytes] = random.one_of(types);
    const std::int32_t largest = random.chance(0.25) ? 20000 : 300;
    parameters[i] = {.name = std::to_string(i),
                     .type = type,
                     .element_bytes = bytes,
                     .elements = random.between(0, largest),
                     .is_trainable = random.chance(0.8),
                     .is_alone = random.chance(0.2)};
  }
  return parameters;
}

template <class Check>
void for_random_layouts(const Check& check) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int i = 0; i < 400; ++i) {
    const auto ranks = random.between(1, 9);
    const std::int64_t bucket_bytes = random.between(1, 25000);
    const ShardLayout layout = lay_out_shards(random_parameters(random), ranks, bucket_bytes);
    SCOPED_TRACE(str(i, ", buckets of ", bucket_bytes, " bytes:\n", to_string(layout)));
    check(layout, bucket_bytes);
    if (testing::Test::HasFailure()) return;
  }
}

// While they become known one after the other, of each kind one bucket waits for more, and what is
// complete stays as it is.
TEST(Shards, ABucketIsCompleteOnceAndNeverChangesThen) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int i = 0; i < 200; ++i) {
    const auto parameters = random_parameters(random);
    const auto ranks = random.between(1, 9);
    const std::int64_t bucket_bytes = random.between(1, 25000);
    GrowingLayout growing(ranks, bucket_bytes);
    std::vector<std::size_t> complete;
    std::vector<std::int64_t> pieces;
    for (const ShardedParameter& parameter : parameters) {
      const auto full = growing.add(parameter);
      if (full) complete.push_back(*full);
      if (full) pieces.push_back(growing.layout().buckets[*full].piece);
      std::set<std::pair<std::string, bool>> waiting;
      for (std::size_t b = 0; b < growing.layout().buckets.size(); ++b) {
        const ShardBucket& bucket = growing.layout().buckets[b];
        if (std::ranges::find(complete, b) != complete.end()) continue;
        EXPECT_TRUE(waiting.emplace(bucket.type, bucket.is_trainable).second);
      }
    }
    std::ranges::copy(growing.close(), std::back_inserter(complete));
    const ShardLayout layout = lay_out_shards(parameters, ranks, bucket_bytes);
    EXPECT_EQ(to_string(growing.layout()), to_string(layout));
    for (std::size_t j = 0; j < pieces.size(); ++j) {
      EXPECT_EQ(pieces[j], layout.buckets[complete[j]].piece);
    }
    std::ranges::sort(complete);
    std::vector<std::size_t> all(layout.buckets.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    EXPECT_EQ(complete, all);
  }
}

TEST(Shards, EveryElementIsOnOneRank) {
  for_random_layouts([](const ShardLayout& layout, std::int64_t) {
    std::vector<std::vector<int>> times;
    for (const auto& parameter : layout.parameters) {
      times.emplace_back(static_cast<std::size_t>(parameter.elements));
    }
    for (std::int32_t rank = 0; rank < layout.ranks; ++rank) {
      for (const Slice& slice : layout.slices(rank)) {
        ASSERT_GE(slice.count, 1);
        for (std::int64_t i = 0; i < slice.count; ++i) {
          ++times[slice.parameter].at(static_cast<std::size_t>(slice.first + i));
        }
      }
    }
    for (const auto& parameter : times) {
      EXPECT_EQ(std::ranges::count(parameter, 1), std::ssize(parameter));
    }
  });
}

TEST(Shards, SlicesOfARankLieInItsPieceAndNotOnEachOther) {
  for_random_layouts([](const ShardLayout& layout, std::int64_t) {
    for (std::int32_t rank = 0; rank < layout.ranks; ++rank) {
      for (std::size_t bucket = 0; bucket < layout.buckets.size(); ++bucket) {
        std::int64_t end = 0;
        for (const Slice& slice : layout.slices(rank, bucket)) {
          EXPECT_GE(slice.offset, end);
          end = slice.offset + slice.count;
        }
        EXPECT_LE(end, layout.buckets[bucket].piece);
      }
    }
  });
}

// A rank's pieces, one behind the other over the ranks, are the bucket: a gather is a
// concatenation.
TEST(Shards, APieceIsAPartOfTheFlatBucket) {
  for_random_layouts([](const ShardLayout& layout, std::int64_t) {
    for (std::int32_t rank = 0; rank < layout.ranks; ++rank) {
      for (const Slice& slice : layout.slices(rank)) {
        const ShardBucket& bucket = layout.buckets[slice.bucket];
        const auto entry = std::ranges::find(bucket.parameters, slice.parameter);
        ASSERT_NE(entry, bucket.parameters.end());
        const std::int64_t start =
            bucket.offsets[static_cast<std::size_t>(entry - bucket.parameters.begin())];
        EXPECT_EQ(rank * bucket.piece + slice.offset, start + slice.first);
      }
    }
  });
}

TEST(Shards, CutsAreAtMultiplesOfTheAlignmentCountedFromTheParameter) {
  for_random_layouts([](const ShardLayout& layout, std::int64_t) {
    for (std::int32_t rank = 0; rank < layout.ranks; ++rank) {
      for (const Slice& slice : layout.slices(rank)) {
        EXPECT_EQ(slice.first % kShardAlignment, 0);
        EXPECT_EQ(slice.offset % kShardAlignment, 0);
        const bool is_end =
            slice.first + slice.count == layout.parameters[slice.parameter].elements;
        EXPECT_TRUE(is_end || slice.count % kShardAlignment == 0);
      }
    }
  });
}

TEST(Shards, ABucketHasOneKindOfParametersInTheirOrderAndIsNoLargerThanAsked) {
  for_random_layouts([](const ShardLayout& layout, std::int64_t bucket_bytes) {
    std::multiset<std::size_t> seen;
    for (const ShardBucket& bucket : layout.buckets) {
      EXPECT_TRUE(std::ranges::is_sorted(bucket.parameters));
      EXPECT_TRUE(std::ranges::is_sorted(bucket.offsets));
      std::int64_t bytes = 0;
      for (const std::size_t p : bucket.parameters) {
        const ShardedParameter& parameter = layout.parameters[p];
        seen.insert(p);
        EXPECT_EQ(parameter.type, bucket.type);
        EXPECT_EQ(parameter.is_trainable, bucket.is_trainable);
        EXPECT_TRUE(!parameter.is_alone || bucket.parameters.size() == 1);
        bytes += parameter.elements * parameter.element_bytes;
      }
      EXPECT_TRUE(bytes <= bucket_bytes || bucket.parameters.size() == 1) << bytes;
    }
    EXPECT_EQ(seen.size(), layout.parameters.size());
    EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), layout.parameters.size());
  });
}

// So the cost of sharding is known beforehand, and is small where it matters.
TEST(Shards, PaddingIsBoundedByTheNumbersOfParametersAndPieces) {
  for_random_layouts([](const ShardLayout& layout, std::int64_t) {
    std::int64_t most = 0;
    for (const ShardBucket& bucket : layout.buckets) {
      const auto places = std::ssize(bucket.parameters) + layout.ranks;
      most += places * (kShardAlignment - 1) * bucket.element_bytes +
              layout.ranks * bucket.element_bytes;
    }
    EXPECT_GE(layout.padding_bytes(), 0);
    EXPECT_LE(layout.padding_bytes(), most);
  });
}

TEST(Shards, AnEqualParameterThatIsAloneIsCutAlikeAmongAnyOthers) {
  const ShardedParameter tied{.name = "tied", .elements = 4711, .is_alone = true};
  const auto cut = [&](std::vector<ShardedParameter> parameters, std::int32_t rank) {
    for (const Slice& slice : lay_out_shards(parameters, 3, 1 << 12).slices(rank)) {
      if (parameters[slice.parameter].name == "tied") return std::pair(slice.first, slice.count);
    }
    return std::pair(std::int64_t{-1}, std::int64_t{0});
  };
  for (std::int32_t rank = 0; rank < 3; ++rank) {
    const auto here = cut({tied, {.name = "a", .elements = 70}}, rank);
    EXPECT_EQ(here,
              cut({{.name = "b", .elements = 5}, {.name = "c", .elements = 900}, tied}, rank));
    EXPECT_GT(here.second, 0);
  }
}

TEST(Shards, OneRankHasEverything) {
  const ShardLayout layout =
      lay_out_shards({{.name = "a", .elements = 100}, {.name = "b", .elements = 28}}, 1, 1 << 20);
  EXPECT_EQ(layout.slices(0),
            (std::vector<Slice>{{.parameter = 0, .bucket = 0, .first = 0, .count = 100},
                                {.parameter = 1, .bucket = 0, .count = 28, .offset = 128}}));
}

TEST(Shards, PrintAsText) {
  const ShardLayout layout =
      lay_out_shards({{.name = "0.weight", .elements = 168},
                      {.name = "0.bias", .elements = 8},
                      {.name = "table", .elements = 10, .is_trainable = false},
                      {.name = "empty", .elements = 0},
                      {.name = "1.weight", .elements = 2000}},
                     2, 4096);
  EXPECT_EQ(to_string(layout),
            "bucket 0: float32, 2 pieces of 128, 80 of padding\n"
            "  0.weight: 168 elements: 128 on rank 0, 40 on rank 1\n"
            "  0.bias: 8 elements: 8 on rank 1\n"
            "  empty: 0 elements\n"
            "bucket 1: float32, frozen, 2 pieces of 64, 118 of padding\n"
            "  table: 10 elements: 10 on rank 0\n"
            "bucket 2: float32, 2 pieces of 1024, 48 of padding\n"
            "  1.weight: 2000 elements: 1024 on rank 0, 976 on rank 1\n");
}

}  // namespace
}  // namespace penstock::partition
