#include "tests/schedule/statement.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace penstock::schedule {
namespace {

const Sizes kSizes{.ranks = 4, .stages_per_rank = 2, .microbatches = 12};

TEST(Statement, ExpressionsAreWorkedOut) {
  const Symbols symbols = symbols_of(kSizes, 3);
  const auto value = [&](std::string_view text) { return value_of(text, symbols); };
  EXPECT_EQ(value("0"), 0);
  EXPECT_EQ(value("2p-1-r"), 4);
  EXPECT_EQ(value("(p-1)(f+b)/v"), 9) << "from left to right";
  EXPECT_EQ(value("max(p-1, 4p-2-2m)f/2"), 3);
  EXPECT_EQ(value("v min(m, p, 3)"), 6);
  EXPECT_EQ(value("2 floor((p+1)/3)"), 2);
  EXPECT_EQ(value("mv+n"), 28) << "three rounds of four";
}

TEST(Statement, ConditionsHoldOrNot) {
  const Symbols symbols = symbols_of(kSizes);
  for (const char* text : {"any", "v even", "v = 2, m >= 2p", "p divides m", "b = 2f",
                           "m a multiple of max(1, floor(m/p)); or whatever"}) {
    EXPECT_TRUE(holds(text, symbols)) << text;
  }
  for (const char* text : {"v = 1", "v = 2, m <= p", "m divides p", "m+1 even"}) {
    EXPECT_FALSE(holds(text, symbols)) << text;
  }
}

TEST(Statement, HasABoundAShareAndAConditionWhereItSaysSo) {
  const Statement plain("(p-1)f; fitted: less");
  EXPECT_EQ(plain.expression, "(p-1)f");
  EXPECT_FALSE(plain.at_most || plain.of_the_makespan);
  EXPECT_EQ(plain.where, "any");
  const Statement bound("at most 1/(p+1) of the makespan where m = p, v <= 6");
  EXPECT_EQ(bound.expression, "1/(p+1)");
  EXPECT_TRUE(bound.at_most && bound.of_the_makespan);
  EXPECT_EQ(bound.where, "m = p, v <= 6");
}

TEST(Statement, WhatIsNoneIsRefused) {
  const Symbols symbols = symbols_of(kSizes);
  for (const char* text : {"", "2x", "(p-1", "max(p", "p+", "little", "p)"}) {
    EXPECT_THROW(value_of(text, symbols), std::invalid_argument) << text;
  }
  for (const char* text : {"", "p", "p is odd", "p = 4,", "p = 1 or v = 2"}) {
    EXPECT_THROW(holds(text, symbols), std::invalid_argument) << text;
  }
}

}  // namespace
}  // namespace penstock::schedule
