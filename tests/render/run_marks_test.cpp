#include "penstock/plan/render/run_marks.h"

#include <gtest/gtest.h>

namespace penstock::render {
namespace {

using enum measure::RunEventKind;

TEST(RunMarks, AnUndisturbedRunHasItsSavesAlone) {
  const std::vector<measure::RunEvent> events = {
      {.kind = Started}, {.kind = Saved, .step = 40}, {.kind = Finished, .step = 40}};
  EXPECT_EQ(run_marks(measure::history_of(events)), (LossMarks{.saved = {40}}));
  EXPECT_EQ(run_marks({}), LossMarks{});
}

TEST(RunMarks, ABreakIsWhereTheStepsWereLost) {
  const std::vector<measure::RunEvent> events = {
      {.kind = Started},
      {.kind = SaveFailed, .step = 30, .reason = "full"},
      {.kind = Failed, .step = 57, .reason = "killed"},
      {.kind = Started, .step = 40},
      {.kind = Resumed, .step = 40, .lost_steps = 17},
      {.kind = Stopped, .step = 60, .reason = "as asked"}};
  EXPECT_EQ(run_marks(measure::history_of(events)),
            (LossMarks{.not_saved = {30},
                       .breaks = {{57, "after step 57, 17 steps done again: killed", false},
                                  {60, "stopped after step 60, as asked", true}},
                       .again = {{40, 57}}}));
}

TEST(RunMarks, FailedSavesRiseAlsoWhereStepsWereDoneAgain) {
  const std::vector<measure::RunEvent> events = {{.kind = Started},
                                                 {.kind = SaveFailed, .step = 30, .reason = "full"},
                                                 {.kind = Started},
                                                 {.kind = SaveFailed, .step = 10, .reason = "full"},
                                                 {.kind = Finished, .step = 40}};
  EXPECT_EQ(run_marks(measure::history_of(events)).not_saved, (std::vector<double>{10, 30}));
}

TEST(RunMarks, LossesAreAddedToTheirCurves) {
  LossCurve curve;
  add_losses(curve, measure::metrics_lines("{\"step\": 1, \"loss\": 5}\n"
                                           "{\"step\": 1, \"val_loss\": 4}\n"));
  EXPECT_EQ(curve.train, (std::vector<LossPoint>{{1, 5}}));
  EXPECT_EQ(curve.validation, (std::vector<LossPoint>{{1, 4}}));
}

TEST(RunMarks, ValidationSetsAreLinesByTheirNames) {
  LossCurve curve;
  add_losses(curve, measure::metrics_lines(
                        R"({"step": 2, "val_loss": 4, "val_losses": {"a": 4, "b": 5}, "best": true}
{"step": 4, "val_loss": 4.5, "val_losses": {"a": 4.5, "b": 3}}
)"));
  EXPECT_EQ(curve.validation_name, "a");
  EXPECT_EQ(curve.validation, (std::vector<LossPoint>{{2, 4}, {4, 4.5}}));
  ASSERT_EQ(curve.others.size(), 1u);
  EXPECT_EQ(curve.others[0].name, "b");
  EXPECT_EQ(curve.others[0].points, (std::vector<LossPoint>{{2, 5}, {4, 3}}));
  EXPECT_EQ(curve.best, (LossPoint{2, 4}));
}

}  // namespace
}  // namespace penstock::render
