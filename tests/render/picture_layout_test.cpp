#include "penstock/plan/render/picture_layout.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace penstock::render {
namespace {

using schedule::Op;

// Ranks of one stage each, busy with forwards of length 1 all the time.
Timeline busy(std::int32_t ranks, std::int32_t microbatches) {
  Timeline timeline{.title = "busy", .end = microbatches * 1.0};
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    Row row{.name = "rank " + std::to_string(rank), .stages = {StageId(rank)}, .lanes = {{}}};
    for (std::int32_t m = 0; m < microbatches; ++m) {
      row.lanes[0].bars.push_back(
          {{StageId(rank), Op::Forward, false, Microbatch(m)}, m * 1.0, m + 1.0});
    }
    timeline.rows.push_back(row);
  }
  return timeline;
}

TEST(PictureLayout, AShortTimelineIsOneLine) {
  const Timeline timeline = busy(4, 8);
  const Layout layout = lay_out(timeline);
  ASSERT_EQ(layout.panels.size(), 1u);
  EXPECT_EQ(layout.panels[0].begin, 0);
  EXPECT_EQ(layout.panels[0].end, 8);
  EXPECT_EQ(layout.panels[0].width(), 960);
}

TEST(PictureLayout, ALongerOneGoesOnInTheNextLineAtAWholeStep) {
  const Timeline timeline = busy(8, 199);
  const Layout layout = lay_out(timeline);
  ASSERT_GT(layout.panels.size(), 2u);
  double end = 0;
  double bottom = 0;
  for (const Panel& panel : layout.panels) {
    EXPECT_EQ(panel.begin, end) << "no time is left out or shown twice";
    EXPECT_EQ(panel.scale, layout.panels[0].scale);
    EXPECT_GT(panel.top, bottom) << "no panel covers another";
    EXPECT_LE(layout.left + panel.width(), layout.picture_width);
    end = panel.end;
    bottom = layout.bottom(panel);
  }
  EXPECT_EQ(end, 199);
  EXPECT_EQ(layout.panels[1].begin, 34) << "a multiple of the axis's step";
  EXPECT_GT(layout.picture_height, bottom);
}

TEST(PictureLayout, AVeryLongOneIsShownAsSharesWithBothEndsInFull) {
  const Timeline timeline = busy(8, 5000);
  const Layout layout = lay_out(timeline);
  ASSERT_EQ(layout.panels.size(), 3u);
  EXPECT_EQ(layout.panels[0].shows, Shows::Shares);
  EXPECT_EQ(layout.panels[0].end, 5000);
  EXPECT_EQ(layout.panels[1].shows, Shows::Boxes);
  EXPECT_EQ(layout.panels[1].begin, 0);
  EXPECT_EQ(layout.panels[2].end, 5000);
  EXPECT_LT(layout.picture_height, 1500);
}

TEST(PictureLayout, ManyRanksAreOneWideLineOfLowRows) {
  const Timeline boxes = busy(64, 500);
  const Layout wide = lay_out(boxes);
  ASSERT_EQ(wide.panels.size(), 1u);
  EXPECT_EQ(wide.panels[0].shows, Shows::Boxes);
  EXPECT_LT(wide.picture_height, 1600);
  const Timeline narrow = busy(64, 5000);
  EXPECT_EQ(lay_out(narrow).panels[0].shows, Shows::Shares);
}

TEST(PictureLayout, LabelsThatWouldOverlapAreLeftOut) {
  const Timeline few = busy(64, 4);
  EXPECT_EQ(lay_out(few).rows_per_label(), 1u);
  const Timeline many = busy(1024, 4);
  const Layout layout = lay_out(many);
  EXPECT_GT(layout.row_height * static_cast<double>(layout.rows_per_label()), 9);
}

TEST(PictureLayout, StagesAreAbbreviatedWhenThereAreMany) {
  EXPECT_EQ(stages_label({StageId(3)}), "stage 3");
  EXPECT_EQ(stages_label({StageId(1), StageId(5)}), "stages 1, 5");
  EXPECT_EQ(stages_label({StageId(0), StageId(4), StageId(8), StageId(12), StageId(16)}),
            "stages 0, 4, ..., 16");
}

}  // namespace
}  // namespace penstock::render
