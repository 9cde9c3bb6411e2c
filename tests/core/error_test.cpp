#include "penstock/core/error.h"

#include <gtest/gtest.h>

#include "penstock/core/check.h"
#include "penstock/core/ids.h"

namespace penstock {
namespace {

TEST(Errors, SayTheMessageThenALinePerNote) {
  const Error error("config pipeline.stages=3: must divide world_size=8", {"use 4", "or 8"});
  EXPECT_STREQ(error.what(),
               "config pipeline.stages=3: must divide world_size=8\n"
               "  note: use 4\n"
               "  note: or 8");
  EXPECT_EQ(error.message(), "config pipeline.stages=3: must divide world_size=8");
  EXPECT_EQ(error.notes(), (std::vector<std::string>{"use 4", "or 8"}));
}

TEST(Errors, CarryTheExitCodeOfTheirKind) {
  const auto code = [](const Error& error) { return static_cast<int>(error.exit_code()); };
  EXPECT_EQ(code(Error("x")), 1);
  EXPECT_EQ(code(ConfigError("x")), 2);
  EXPECT_EQ(code(ParseError("x")), 2);
  EXPECT_EQ(code(ScheduleError("x")), 2);
  EXPECT_EQ(code(CheckpointError("x")), 3);
  EXPECT_EQ(code(CommError("x")), 4);
  EXPECT_EQ(code(CommError("x", {}, ExitCode::Hang)), 5);
  EXPECT_EQ(code(NumericsError("x")), 6);
}

TEST(CheckDeathTest, PrintsPlaceConditionAndValuesThenAborts) {
  const int live = 3;
  EXPECT_EXIT(PENSTOCK_CHECK(live == 4, "live ", live, " of 4"), testing::KilledBySignal(SIGABRT),
              "penstock bug: .*error_test.cpp:[0-9]+: check failed: live == 4: live 3 of 4");
}

TEST(Check, EvaluatesItsValuesOnlyOnFailure) {
  int evaluated = 0;
  const auto value = [&] { return ++evaluated; };
  PENSTOCK_CHECK(true, value());
  EXPECT_EQ(evaluated, 0);
}

TEST(Ids, ComparePrintAndHashAsTheirNumber) {
  EXPECT_LT(Rank(1), Rank(2));
  EXPECT_EQ(StageId(std::size_t{7}).value, 7);
  EXPECT_EQ(str(Microbatch(5)), "5");
  EXPECT_EQ(std::hash<Rank>{}(Rank(9)), std::hash<std::int32_t>{}(9));
  EXPECT_FALSE((std::is_convertible_v<StageId, Rank>));
  EXPECT_FALSE((std::is_convertible_v<int, Rank>));
}

}  // namespace
}  // namespace penstock
