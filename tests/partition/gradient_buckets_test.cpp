#include "penstock/plan/partition/gradient_buckets.h"

#include <gtest/gtest.h>

namespace penstock::partition {
namespace {

using Buckets = std::vector<std::vector<std::size_t>>;

TEST(GradientBuckets, FillFromTheLastParameterToTheFirst) {
  const std::vector<GradientSize> four = {
      {"float32", 4}, {"float32", 4}, {"float32", 4}, {"float32", 4}};
  EXPECT_EQ(gradient_buckets(four, 12), (Buckets{{3, 2, 1}, {0}}));
  EXPECT_EQ(gradient_buckets(four, 16), (Buckets{{3, 2, 1, 0}}));
}

TEST(GradientBuckets, OneThatIsLargerIsAlone) {
  EXPECT_EQ(gradient_buckets({{"float32", 4}, {"float32", 100}, {"float32", 4}}, 8),
            (Buckets{{2}, {1}, {0}}));
}

TEST(GradientBuckets, HaveOneTypeEach) {
  EXPECT_EQ(gradient_buckets({{"float32", 4}, {"float16", 2}, {"float16", 2}}, 100),
            (Buckets{{2, 1}, {0}}));
}

TEST(GradientBuckets, OfNothingAreNone) { EXPECT_EQ(gradient_buckets({}, 8), Buckets{}); }

}  // namespace
}  // namespace penstock::partition
