#include "penstock/plan/partition/persistence.h"

#include <gtest/gtest.h>

namespace penstock::partition {
namespace {

TEST(Persistence, IsOfParametersUpToASize) {
  Persistence none({});
  EXPECT_FALSE(none.stays("empty", 0));
  Persistence small({.elements = 10});
  EXPECT_TRUE(small.stays("bias", 10));
  EXPECT_FALSE(small.stays("weight", 11));
}

TEST(Persistence, EndsWhereAllTogetherAreTooMany) {
  Persistence small({.elements = 10, .elements_in_all = 16});
  EXPECT_TRUE(small.stays("0.bias", 10));
  EXPECT_FALSE(small.stays("1.bias", 10));
  EXPECT_TRUE(small.stays("2.scale", 6)) << "for which there is room";
  EXPECT_FALSE(small.stays("3.scale", 1));
}

TEST(Persistence, CountsATiedParameterOnceAndAnswersItAlike) {
  Persistence small({.elements = 10, .elements_in_all = 16});
  EXPECT_TRUE(small.stays("tied", 10));
  EXPECT_FALSE(small.stays("other", 10));
  EXPECT_TRUE(small.stays("tied", 10));
  EXPECT_FALSE(small.stays("other", 10));
}

}  // namespace
}  // namespace penstock::partition
