#include "penstock/runtime/run/best_loss.h"

#include <gtest/gtest.h>

#include <limits>

#include "penstock/core/error.h"
#include "tests/support/message_of.h"

namespace penstock::run {
namespace {

using testing_support::message_of;

TEST(BestLoss, IsTheLowestAndEqualOnesAreNotLower) {
  BestLoss best("texts", 0);
  EXPECT_FALSE(best.best());
  EXPECT_TRUE(best.add({.step = 10, .loss = 2.0}));
  EXPECT_FALSE(best.add({.step = 20, .loss = 2.0}));
  EXPECT_TRUE(best.add({.step = 30, .loss = 1.5}));
  EXPECT_FALSE(best.add({.step = 40, .loss = std::numeric_limits<double>::quiet_NaN()}));
  EXPECT_EQ(best.best()->step, 30);
  EXPECT_EQ(best.validated_step(), 40);
  EXPECT_FALSE(best.is_over()) << "without patience it waits for ever";
}

TEST(BestLoss, IsOverAfterSoManyValidationsInARow) {
  BestLoss best("texts", 2);
  for (const double loss : {3.0, 4.0, 2.0, 2.5}) best.add({.step = 1, .loss = loss});
  EXPECT_FALSE(best.is_over()) << "the lower one began anew";
  best.add({.step = 5, .loss = 2.1});
  EXPECT_TRUE(best.is_over());
}

TEST(BestLoss, GoesOnFromItsState) {
  BestLoss one("texts", 2);
  one.add({.step = 10, .loss = 0.1 + 0.2});
  one.add({.step = 20, .loss = 7});
  BestLoss other("texts", 2);
  other.go_on_from(one.state());
  EXPECT_EQ(other.state(), one.state());
  EXPECT_EQ(other.best()->loss, one.best()->loss) << "the same bits";
  EXPECT_FALSE(other.add({.step = 30, .loss = 0.30000000000000004}));
  EXPECT_TRUE(other.is_over());
  other.go_on_from({});
  EXPECT_FALSE(other.best());
}

TEST(BestLoss, BeginsAnewForAnotherSet) {
  BestLoss one("chats", 2);
  one.add({.step = 10, .loss = 0.5});
  BestLoss other("texts", 2);
  EXPECT_EQ(other.go_on_from(one.state()), "chats");
  EXPECT_TRUE(other.add({.step = 20, .loss = 7})) << "0.5 was another set's";
  BestLoss same("chats", 2);
  EXPECT_EQ(same.go_on_from(one.state()), std::nullopt);
  EXPECT_FALSE(same.add({.step = 20, .loss = 7}));
}

TEST(BestLoss, KnowsItsModel) {
  BestLoss one("texts", 2);
  one.add({.step = 10, .loss = 2});
  one.saved("ab12");
  one.add({.step = 20, .loss = 3});
  BestLoss other("texts", 2);
  other.go_on_from(one.state());
  EXPECT_EQ(other.model(), "ab12");
  other.add({.step = 30, .loss = 1});
  EXPECT_EQ(other.model(), "") << "the better one is not saved yet";
}

TEST(BestLoss, RefusesAStateThatIsNone) {
  BestLoss best("texts", 2);
  for (const char* const text : {"", "10 0.5 20", "10 0.5 20 x"}) {
    EXPECT_NE(message_of([&] { best.go_on_from({{"best validation", text}}); }), "no error");
  }
}

}  // namespace
}  // namespace penstock::run
