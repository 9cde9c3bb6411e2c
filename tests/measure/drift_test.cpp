#include "penstock/plan/measure/drift.h"

#include <gtest/gtest.h>

#include "penstock/core/text.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/schedule/generators/generators.h"
#include "tests/support/recordings.h"

namespace penstock::measure {
namespace {

// Stage 1's second forward takes 3 ms longer than simulated: it and all behind it are late.
TEST(Drift, ALongActionIsLongAndWhatFollowsIsLate) {
  const auto schedule = verify::VerifiedSchedule::from(schedule::lower_communication(
      schedule::make_schedule("gpipe", {.ranks = 2, .microbatches = 2})));
  const std::vector<std::vector<double>> forward = {{1, 1}, {1, 4}};
  const Recording recording =
      testing_support::recording_of(schedule, simulate::Costs{.forward = forward});
  const auto drifted =
      drifts(measured_step(recording, schedule, 1, 0), simulate::simulate(schedule, {}));
  std::vector<std::string> texts;
  for (const Drift& drift : drifted) {
    texts.push_back(str(drift.rank, ' ', drift.action, ' ', drift.start, ' ', drift.duration));
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"0 0F0 0 0", "0 0F1 0 0", "0 0B0 3 0", "0 0B1 3 0",
                                             "1 1F0 0 0", "1 1F1 0 3", "1 1B0 3 0", "1 1B1 3 0"}));
  std::vector<std::string> ops;
  for (const OpDrift& op : by_op(drifted)) {
    ops.push_back(str(op.stage, to_string(op.op), ' ', op.start_first, ' ', op.start_last, ' ',
                      op.duration_median, ' ', op.duration_largest));
  }
  EXPECT_EQ(ops,
            (std::vector<std::string>{"0F 0 0 0 0", "0B 3 3 0 0", "1F 0 0 1.5 3", "1B 3 3 0 0"}));
}

}  // namespace
}  // namespace penstock::measure
