// Four axes of a layout multiply to more than 64 bits hold: 2^80 ranks were 0, "and --world is 32".
#include <gtest/gtest.h>

#include "penstock/core/error.h"
#include "penstock/plan/choose/asked_layout.h"
#include "tests/support/message_of.h"

namespace penstock::choose {
namespace {

TEST(Regress, RanksOfFourAxesOverflowed) {
  const Frame frame{.world = 32, .layers = 34};
  const std::string told = testing_support::message_of(
      [&] { asked_layout("pipe=1048576,data=1048576,context=1048576,tensor=1048576", frame); });
  EXPECT_NE(told.find("1152921504606846976 ranks; at most 1048576 can be"), std::string::npos)
      << told;
}

}  // namespace
}  // namespace penstock::choose
