// How far two checkpoints are apart, whatever their portions and types.
#include "penstock/files/checkpoint/difference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "penstock/files/checkpoint/checkpoint_directory.h"
#include "penstock/files/checkpoint/shard.h"
#include "tests/support/temporary_folder.h"

namespace penstock::checkpoint {
namespace {

using testing_support::TemporaryFolder;

// More than two portions of floats.
constexpr std::size_t kMany = 2 * SavedCheckpoint::kPortionBytes / sizeof(float) + 100;

template <class Number>
std::string bytes_in(const std::vector<Number>& values) {
  std::string bytes(values.size() * sizeof(Number), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

PieceToSave weight(const std::string& name, ScalarType type, const std::string& bytes) {
  const auto count = static_cast<std::int64_t>(bytes.size() / bytes_of(type));
  return {.name = name,
          .state = "weight",
          .type = type,
          .shape = {count},
          .count = count,
          .bytes = bytes};
}

class DifferenceTest : public testing::Test {
 protected:
  SavedCheckpoint saved(const std::string& name, const std::vector<PieceToSave>& pieces) {
    CheckpointDirectory directory(folder_.path());
    const std::string folder = directory.begin(name, 0);
    directory.commit(name, merge({write_shard(folder, 0, 1, pieces)}));
    return SavedCheckpoint(folder_.file(name));
  }

  // Of a tensor in both.
  Difference between(ScalarType type, const std::string& of_a, const std::string& of_b) {
    SavedCheckpoint a = saved("a", {weight("w", type, of_a)});
    SavedCheckpoint b = saved("b", {weight("w", type, of_b)});
    told_ = 0;
    return difference(a, b, [&](std::uint64_t bytes) { told_ += bytes; });
  }

  TemporaryFolder folder_;
  std::uint64_t told_ = 0;
};

TEST_F(DifferenceTest, IsRelativeToTheLargestValueOfAllPortions) {
  std::vector<float> a(kMany, 1.0F);
  a[3] = -8.0F;  // The largest is in a portion that is equal.
  std::vector<float> b = a;
  b.back() = 3.0F;
  const Difference found = between(ScalarType::F32, bytes_in(a), bytes_in(b));
  ASSERT_EQ(found.different.size(), 1U);
  EXPECT_EQ(found.different[0].what, "other values");
  EXPECT_EQ(found.different[0].relative, 0.25);
  EXPECT_EQ(found.largest(), 0.25);
  EXPECT_EQ(told_, kMany * sizeof(float));
}

TEST_F(DifferenceTest, IsNoneOfEqualBitsWhateverTheyMean) {
  std::vector<double> values(kMany, std::nan(""));
  values[1] = std::numeric_limits<double>::infinity();
  const Difference found = between(ScalarType::F64, bytes_in(values), bytes_in(values));
  EXPECT_EQ(found.equal, 1U);
  EXPECT_EQ(found.largest(), 0.0);
}

TEST_F(DifferenceTest, HasNoSizeWhereAValueIsNotFinite) {
  std::vector<float> a(kMany, 1.0F);
  a[0] = -std::numeric_limits<float>::infinity();
  std::vector<float> b = a;
  b.back() = 2.0F;
  const Difference found = between(ScalarType::F32, bytes_in(a), bytes_in(b));
  EXPECT_TRUE(std::isinf(found.largest()));
}

TEST_F(DifferenceTest, HasNoSizeOfOtherTypes) {
  EXPECT_TRUE(std::isinf(between(ScalarType::BF16, "aabb", "aabc").largest()));
  EXPECT_EQ(between(ScalarType::BF16, "aabb", "aabb").equal, 1U);
}

TEST_F(DifferenceTest, NamesWhatOneOfThemLacksOrHasInAnotherShape) {
  const std::string four = bytes_in(std::vector<float>(4, 1.0F));
  const std::string five = bytes_in(std::vector<float>(5, 1.0F));
  SavedCheckpoint a =
      saved("a", {weight("both", ScalarType::F32, four), weight("one", ScalarType::F32, four)});
  SavedCheckpoint b =
      saved("b", {weight("both", ScalarType::F32, five), weight("two", ScalarType::F32, four)});
  std::vector<std::string> texts;
  for (const TensorDifference& each : difference(a, b).different) {
    texts.push_back(each.name + ": " + each.what);
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"both: F32[4] in A, F32[5] in B", "one: only in A",
                                             "two: only in B"}));
}

}  // namespace
}  // namespace penstock::checkpoint
