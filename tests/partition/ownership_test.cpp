#include "penstock/partition/ownership.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "penstock/core/text.h"
#include "tests/support/random.h"

namespace penstock::partition {
namespace {

using testing_support::Random;

std::vector<Parameter> random_parameters(Random& random) {
  const std::vector<std::pair<std::string, std::int64_t>> types = {
      {"float32", 4}, {"bfloat16", 2}, {"float64", 8}};
  std::vector<Parameter> parameters(static_cast<std::size_t>(random.between(0, 12)));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& [type, bytes] = random.one_of(types);
    const std::int32_t largest = random.chance(0.25) ? 20000 : 300;
    parameters[i] = {.name = std::to_string(i),
                     .type = type,
                     .element_bytes = bytes,
                     .elements = random.between(0, largest),
                     .is_trainable = random.chance(0.8),
                     .is_tied = random.chance(0.2)};
  }
  return parameters;
}

SharingRules rules_of(std::int32_t ranks, std::int64_t bucket_bytes) {
  return {.stage = ZeroStage::Parameters,
          .ranks = ranks,
          .bucket_bytes = bucket_bytes,
          .one_rank_has_pieces = true};
}

Ownership all_cut(const std::vector<Parameter>& parameters, std::int32_t ranks,
                  std::int64_t bucket_bytes) {
  return own(parameters, rules_of(ranks, bucket_bytes));
}

template <class Check>
void for_random_layouts(const Check& check) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int i = 0; i < 400; ++i) {
    const auto ranks = random.between(1, 9);
    const std::int64_t bucket_bytes = random.between(1, 25000);
    const Ownership layout = all_cut(random_parameters(random), ranks, bucket_bytes);
    SCOPED_TRACE(str(i, ", buckets of ", bucket_bytes, " bytes:\n", to_string(layout)));
    check(layout, bucket_bytes);
    if (testing::Test::HasFailure()) return;
  }
}

// While they become known one after the other, of each kind one bucket waits for more, and what is
// complete stays as it is.
TEST(Ownership, ABucketIsCompleteOnceAndNeverChangesThen) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int i = 0; i < 200; ++i) {
    const auto parameters = random_parameters(random);
    const auto ranks = random.between(1, 9);
    const std::int64_t bucket_bytes = random.between(1, 25000);
    GrowingOwnership growing(rules_of(ranks, bucket_bytes));
    std::vector<std::size_t> complete;
    std::vector<std::int64_t> pieces;
    for (const Parameter& parameter : parameters) {
      const auto full = growing.add(parameter);
      if (full) complete.push_back(*full);
      if (full) pieces.push_back(growing.ownership().buckets[*full].piece);
      std::set<std::pair<std::string, bool>> waiting;
      for (std::size_t b = 0; b < growing.ownership().buckets.size(); ++b) {
        const Bucket& bucket = growing.ownership().buckets[b];
        if (std::ranges::find(complete, b) != complete.end()) continue;
        EXPECT_TRUE(waiting.emplace(bucket.type, bucket.is_trainable).second);
      }
    }
    std::ranges::copy(growing.close(), std::back_inserter(complete));
    const Ownership layout = all_cut(parameters, ranks, bucket_bytes);
    EXPECT_EQ(to_string(growing.ownership()), to_string(layout));
    for (std::size_t j = 0; j < pieces.size(); ++j) {
      EXPECT_EQ(pieces[j], layout.buckets[complete[j]].piece);
    }
    std::ranges::sort(complete);
    std::vector<std::size_t> all(layout.buckets.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    EXPECT_EQ(complete, all);
  }
}

TEST(Ownership, EveryElementIsOnOneRank) {
  for_random_layouts([](const Ownership& layout, std::int64_t) {
    std::vector<std::vector<int>> times;
    for (const auto& parameter : layout.parameters) {
      times.emplace_back(static_cast<std::size_t>(parameter.elements));
    }
    for (std::int32_t rank = 0; rank < layout.rules.ranks; ++rank) {
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

TEST(Ownership, SlicesOfARankLieInItsPieceAndNotOnEachOther) {
  for_random_layouts([](const Ownership& layout, std::int64_t) {
    for (std::int32_t rank = 0; rank < layout.rules.ranks; ++rank) {
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
TEST(Ownership, APieceIsAPartOfTheFlatBucket) {
  for_random_layouts([](const Ownership& layout, std::int64_t) {
    for (std::int32_t rank = 0; rank < layout.rules.ranks; ++rank) {
      for (const Slice& slice : layout.slices(rank)) {
        const Bucket& bucket = layout.buckets[slice.bucket];
        const auto entry = std::ranges::find(bucket.parameters, slice.parameter);
        ASSERT_NE(entry, bucket.parameters.end());
        const std::int64_t start =
            bucket.offsets[static_cast<std::size_t>(entry - bucket.parameters.begin())];
        EXPECT_EQ(rank * bucket.piece + slice.offset, start + slice.first);
      }
    }
  });
}

TEST(Ownership, CutsAreAtMultiplesOfTheAlignmentCountedFromTheParameter) {
  for_random_layouts([](const Ownership& layout, std::int64_t) {
    for (std::int32_t rank = 0; rank < layout.rules.ranks; ++rank) {
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

TEST(Ownership, ABucketHasOneKindOfParametersInTheirOrderAndIsNoLargerThanAsked) {
  for_random_layouts([](const Ownership& layout, std::int64_t bucket_bytes) {
    std::multiset<std::size_t> seen;
    for (const Bucket& bucket : layout.buckets) {
      EXPECT_TRUE(std::ranges::is_sorted(bucket.parameters));
      EXPECT_TRUE(std::ranges::is_sorted(bucket.offsets));
      std::int64_t bytes = 0;
      for (const std::size_t p : bucket.parameters) {
        const Parameter& parameter = layout.parameters[p];
        seen.insert(p);
        EXPECT_EQ(parameter.type, bucket.type);
        EXPECT_EQ(parameter.is_trainable, bucket.is_trainable);
        EXPECT_TRUE(!parameter.is_tied || bucket.parameters.size() == 1);
        bytes += parameter.elements * parameter.element_bytes;
      }
      EXPECT_TRUE(bytes <= bucket_bytes || bucket.parameters.size() == 1) << bytes;
    }
    EXPECT_EQ(seen.size(), layout.parameters.size());
    EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), layout.parameters.size());
  });
}

// So the cost of sharding is known beforehand, and is small where it matters.
TEST(Ownership, PaddingIsBoundedByTheNumbersOfParametersAndPieces) {
  for_random_layouts([](const Ownership& layout, std::int64_t) {
    std::int64_t most = 0;
    for (const Bucket& bucket : layout.buckets) {
      const auto places = std::ssize(bucket.parameters) + layout.rules.ranks;
      most += places * (kShardAlignment - 1) * bucket.element_bytes +
              layout.rules.ranks * bucket.element_bytes;
    }
    EXPECT_GE(layout.padding_bytes(), 0);
    EXPECT_LE(layout.padding_bytes(), most);
  });
}

TEST(Ownership, AnEqualParameterThatIsAloneIsCutAlikeAmongAnyOthers) {
  const Parameter tied{.name = "tied", .elements = 4711, .is_tied = true};
  const auto cut = [&](std::vector<Parameter> parameters, std::int32_t rank) {
    for (const Slice& slice : all_cut(parameters, 3, 1 << 12).slices(rank)) {
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

TEST(Ownership, OneRankHasEverything) {
  const Ownership layout =
      all_cut({{.name = "a", .elements = 100}, {.name = "b", .elements = 28}}, 1, 1 << 20);
  EXPECT_EQ(layout.slices(0),
            (std::vector<Slice>{{.parameter = 0, .bucket = 0, .first = 0, .count = 100},
                                {.parameter = 1, .bucket = 0, .count = 28, .offset = 128}}));
}

std::vector<Parameter> model() {
  return {{.name = "0.weight", .elements = 168},
          {.name = "0.bias", .elements = 8},
          {.name = "table", .elements = 10, .is_trainable = false},
          {.name = "empty", .elements = 0},
          {.name = "tied", .elements = 300, .is_tied = true},
          {.name = "1.weight", .elements = 2000}};
}

std::string text(ZeroStage stage, std::int32_t ranks, const PersistenceLimits& persistence = {}) {
  return to_string(
      own(model(), {.stage = stage, .ranks = ranks, .bucket_bytes = 4096}, persistence));
}

TEST(Ownership, WithoutZeroEveryRankUpdatesEverything) {
  EXPECT_EQ(text(ZeroStage::Off, 2),
            "ZeRO 0 over 2 ranks, buckets of up to 4096 bytes, kept when summed\n"
            "no bucket:\n"
            "  0.weight: float32, 168 elements: updated by every rank\n"
            "  0.bias: float32, 8 elements: updated by every rank\n"
            "  table: float32, 10 elements, frozen: whole on every rank\n"
            "  empty: float32, 0 elements: updated by every rank\n"
            "  tied: float32, 300 elements: updated by every rank\n"
            "  1.weight: float32, 2000 elements: updated by every rank\n");
}

constexpr const char* kBuckets =
    "bucket 0: float32, whole, 2 pieces of 128, 80 of padding\n"
    "  0.weight: 168 elements: 128 on rank 0, 40 on rank 1\n"
    "  0.bias: 8 elements: 8 on rank 1\n"
    "  empty: 0 elements\n"
    "bucket 1: float32, whole, 2 pieces of 192, 84 of padding\n"
    "  tied: 300 elements: 192 on rank 0, 108 on rank 1\n"
    "bucket 2: float32, whole, 2 pieces of 1024, 48 of padding\n"
    "  1.weight: 2000 elements: 1024 on rank 0, 976 on rank 1\n"
    "no bucket:\n"
    "  table: float32, 10 elements, frozen: whole on every rank\n";

TEST(Ownership, Stages1And2CutUpdatesAndDifferInWhatTheyKeep) {
  const std::string rules = " over 2 ranks, buckets of up to 4096 bytes, ";
  EXPECT_EQ(text(ZeroStage::OptimizerStates, 2),
            "ZeRO 1" + rules + "kept when summed\n" + kBuckets);
  EXPECT_EQ(text(ZeroStage::Gradients, 2), "ZeRO 2" + rules + "released when summed\n" + kBuckets);
}

TEST(Ownership, InStage3AllComeAndGoButSmallOnes) {
  EXPECT_EQ(text(ZeroStage::Parameters, 2, {.elements = 9}),
            "ZeRO 3 over 2 ranks, buckets of up to 4096 bytes, released when summed\n"
            "bucket 0: float32, while used, 2 pieces of 128, 88 of padding\n"
            "  0.weight: 168 elements: 128 on rank 0, 40 on rank 1\n"
            "bucket 1: float32, whole, 2 pieces of 64, 120 of padding\n"
            "  0.bias: 8 elements: 8 on rank 0\n"
            "  empty: 0 elements\n"
            "bucket 2: float32, frozen, while used, 2 pieces of 64, 118 of padding\n"
            "  table: 10 elements: 10 on rank 0\n"
            "bucket 3: float32, while used, 2 pieces of 192, 84 of padding\n"
            "  tied: 300 elements: 192 on rank 0, 108 on rank 1\n"
            "bucket 4: float32, while used, 2 pieces of 1024, 48 of padding\n"
            "  1.weight: 2000 elements: 1024 on rank 0, 976 on rank 1\n");
}

TEST(Ownership, OneRankIsCutOnlyIfItsPiecesAreElsewhere) {
  for (const ZeroStage stage : {ZeroStage::OptimizerStates, ZeroStage::Parameters}) {
    EXPECT_TRUE(own(model(), {.stage = stage}).buckets.empty());
    const Ownership cut = own(model(), {.stage = stage, .one_rank_has_pieces = true});
    EXPECT_EQ(cut.parameters[0].updater, Updater::Owners);
  }
}

// Those of stages whose gradients meet only after the step (tied layers in Python).
TEST(Ownership, ParametersThatMustStayDoSoUnlessTheyAreFrozen) {
  GrowingOwnership growing({.stage = ZeroStage::Parameters, .ranks = 2});
  for (const Parameter& each : model()) growing.add(each, MayLeave::No);
  for (const Holding& each : growing.ownership().parameters) {
    EXPECT_EQ(each.presence, each.is_trainable ? Presence::Whole : Presence::WhileUsed);
    EXPECT_EQ(each.updater, each.is_trainable ? Updater::Owners : Updater::Nobody);
  }
}

TEST(Ownership, AskingBeforehandGivesWhatAddingGives) {
  Persistence persistence({.elements = 300, .elements_in_all = 178});
  GrowingOwnership growing({.stage = ZeroStage::Parameters, .ranks = 2}, &persistence);
  std::vector<Presence> asked;
  for (const Parameter& each : model()) {
    asked.push_back(growing.presence_of(each, MayLeave::Yes));
  }
  for (const Parameter& each : model()) growing.add(each);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    EXPECT_EQ(asked[i], growing.ownership().parameters[i].presence) << i;
  }
  EXPECT_EQ(asked[1], Presence::Whole);
  EXPECT_EQ(asked[4], Presence::WhileUsed);
}

}  // namespace
}  // namespace penstock::partition
