// A run of epochs knows its steps late: WSD whose decay was longer began in the middle of its fall,
// and a warm-up that never ended was not told.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "penstock/core/text.h"
#include "penstock/plan/config/learning_rate.h"
#include "tests/support/message_of.h"

namespace penstock::config {
namespace {

using testing_support::message_of;

TEST(DecayWasLongerThanTheRun, IsRefused) {
  std::vector<std::string> told;
  const auto tell = [&](const std::string& line) { told.push_back(line); };
  const SchedulerConfig wsd{.type = SchedulerType::Wsd, .warmup = 2, .decay = 1000};
  const std::string refused = message_of([&] { require_curve_fits(wsd, 3, tell); });
  EXPECT_EQ(split(refused, '\n').front(),
            "scheduler.params.decay = 1000: the last 1000 steps, and the first 2 of warmup, are "
            "more than the 3 steps of the schedule");
  require_curve_fits(wsd, 1002, tell);
  EXPECT_TRUE(told.empty());
  const SchedulerConfig cosine{.type = SchedulerType::Cosine, .warmup = 500};
  require_curve_fits(cosine, 501, tell);
  EXPECT_TRUE(told.empty());
  require_curve_fits(cosine, 243, tell);
  EXPECT_EQ(told, std::vector<std::string>{"the warm-up takes 500 steps, and the run has 243: the "
                                           "learning rate never is optimizer.params.lr"});
}

}  // namespace
}  // namespace penstock::config
