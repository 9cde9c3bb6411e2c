#include "penstock/render/schedule_svg.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "penstock/plan/render/palette.h"
#include "penstock/schedule/generators/generators.h"
#include "tests/render/svg_text.h"

namespace penstock::render {
namespace {

using schedule::Schedule;

constexpr const char* kGolden = PENSTOCK_SOURCE_DIR "/docs/images/schedule.svg";

std::string drawn(const Schedule& schedule, const simulate::Costs& costs = {}) {
  const auto verified = verify::VerifiedSchedule::from(schedule);
  return schedule_svg(verified, simulate::simulate(verified, costs));
}

Schedule two_chunks() {
  return schedule::parse_csv(
      "0F0,0F1,2F0,2F1,2B0,0B0,2B1,0B1\n"
      "1F0,1F1,3F0,3B0,3F1,1B0,3B1,1B1\n",
      "two chunks");
}

std::string file_text(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

TEST(ScheduleSvg, TheDocumentationShowsWhatIsDrawn) {
  const std::string picture =
      drawn(schedule::make_schedule("1f1b", {.ranks = 8, .microbatches = 32}));
  if (std::getenv("PENSTOCK_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(kGolden, std::ios::binary) << picture;
  }
  EXPECT_EQ(picture, file_text(kGolden)) << "PENSTOCK_UPDATE_GOLDEN=1 rewrites " << kGolden;
}

TEST(ScheduleSvg, EveryActionHasItsBoxNumberAndTimes) {
  const std::string picture =
      drawn(schedule::make_schedule("1f1b", {.ranks = 4, .microbatches = 8}));
  EXPECT_EQ(misplaced_tag(picture), "");
  EXPECT_EQ(occurrences(picture, "<title>"), 4u * 8u * 2u);
  EXPECT_EQ(occurrences(picture, ">7</text>"), 4u * 2u);
  EXPECT_EQ(occurrences(picture, "<title>3B0: 4 to 6</title>"), 1u);
  EXPECT_EQ(occurrences(picture, "<title>0B7: 31 to 33</title>"), 1u);
}

TEST(ScheduleSvg, SaysWhatItShows) {
  const std::string picture =
      drawn(schedule::make_schedule("1f1b", {.ranks = 4, .microbatches = 8}));
  EXPECT_EQ(occurrences(picture, ">1f1b, 4 ranks, 8 microbatches</text>"), 1u);
  EXPECT_EQ(occurrences(picture,
                        "makespan 33 \xC2\xB7 bubble 27.3% \xC2\xB7 "
                        "peak activations by rank: 4, 3, 2, 1</text>"),
            1u);
  EXPECT_EQ(occurrences(picture, ">rank 3</text>"), 1u);
  EXPECT_EQ(occurrences(picture, ">stage 3</text>"), 1u);
  for (const char* entry :
       {">forward</text>", ">backward</text>", ">idle</text>", ">time</text>"}) {
    EXPECT_EQ(occurrences(picture, entry), 1u) << entry;
  }
}

TEST(ScheduleSvg, ASingleRankIsNeverIdle) {
  const std::string picture =
      drawn(schedule::make_schedule("gpipe", {.ranks = 1, .microbatches = 1}));
  EXPECT_EQ(occurrences(picture, ">gpipe, 1 rank, 1 microbatch</text>"), 1u);
  EXPECT_EQ(occurrences(picture, "bubble 0.0%"), 1u);
}

TEST(ScheduleSvg, EachChunkHasItsShade) {
  const std::string picture = drawn(two_chunks());
  EXPECT_EQ(occurrences(picture, ">two chunks, 2 ranks, 4 stages, 2 microbatches</text>"), 1u);
  EXPECT_EQ(occurrences(picture, ">stages 1, 3</text>"), 1u);
  for (const Colour colour : {kSkyBlue, kBlue, kOrange, kVermilion}) {
    EXPECT_EQ(occurrences(picture, "fill=\"" + to_string(colour) + '"'), 2u + 1u)
        << "the boxes of each rank and the legend";
  }
}

TEST(ScheduleSvg, HalvesOfSplitBackwardsHaveTheirOwnColours) {
  const std::string one = drawn(schedule::make_schedule("zb_h1", {.ranks = 2, .microbatches = 3}));
  for (const Colour colour : {kBlue, kPink, kGreen}) {
    EXPECT_EQ(occurrences(one, "fill=\"" + to_string(colour) + '"'), 2u + 1u);
  }
  EXPECT_EQ(occurrences(one, ">backward</text>"), 0u) << "there is none that is whole";
  const std::string two =
      drawn(schedule::make_schedule("zbv", {.ranks = 2, .stages_per_rank = 2, .microbatches = 3}));
  for (const Colour colour : {kSkyBlue, kBlue, kLightPink, kPink, kLightGreen, kGreen}) {
    EXPECT_EQ(occurrences(two, "fill=\"" + to_string(colour) + '"'), 2u + 1u);
  }
  EXPECT_EQ(misplaced_tag(two), "");
}

TEST(ScheduleSvg, OverlappedPairsAreDrawnOneAfterTheOtherAndUnderlined) {
  const std::string picture = drawn(
      schedule::make_schedule("dualpipev", {.ranks = 2, .stages_per_rank = 2, .microbatches = 4}));
  EXPECT_EQ(occurrences(picture, "<title>"), 3u * 2u * 2u * 4u - 11u) << "11 Bs are whole";
  EXPECT_EQ(occurrences(picture, ">underlined: overlapped</text>"), 1u);
  EXPECT_EQ(occurrences(picture, "stroke-width=\"1.5\""), 2u) << "a path per rank";
}

TEST(ScheduleSvg, ForwardOnlyHasNoBackwardInItsLegend) {
  const std::string picture = drawn(schedule::make_schedule(
      "forward_only", {.ranks = 2, .stages_per_rank = 6, .microbatches = 2}));
  EXPECT_EQ(occurrences(picture, ">stages 1, 3, ..., 11</text>"), 1u);
  EXPECT_EQ(occurrences(picture, ">backward</text>"), 0u);
}

TEST(ScheduleSvg, ALongScheduleGoesOnInTheNextLineWithAllItsNumbers) {
  const std::string picture =
      drawn(schedule::make_schedule("1f1b", {.ranks = 8, .microbatches = 32}));
  EXPECT_EQ(occurrences(picture, ">31</text>"), 8u * 2u);
  EXPECT_EQ(occurrences(picture, ">rank 7</text>"), 3u) << "in each of three lines";
}

TEST(ScheduleSvg, AVeryLongScheduleShowsItsEndsAndSharesOfTheWhole) {
  const std::string picture =
      drawn(schedule::make_schedule("gpipe", {.ranks = 2, .microbatches = 1000}));
  EXPECT_EQ(misplaced_tag(picture), "");
  EXPECT_EQ(occurrences(picture, ">0</text>"), 2u + 2u) << "forwards, and an axis below each";
  EXPECT_EQ(occurrences(picture, ">999</text>"), 2u) << "backwards";
  EXPECT_EQ(occurrences(picture, ">2000</text>"), 1u) << "of the axis";
  EXPECT_LT(picture.size(), 100'000u);
}

TEST(ScheduleSvg, ManyRanksAreLowRowsWithAName) {
  const std::string picture =
      drawn(schedule::make_schedule("1f1b", {.ranks = 64, .microbatches = 64}));
  EXPECT_EQ(occurrences(picture, ">rank 63</text>"), 1u);
  EXPECT_EQ(occurrences(picture, "<title>"), 64u * 64u * 2u);
}

TEST(ScheduleSvg, ActionsThatTakeNoTimeAreNoTrouble) {
  const Schedule schedule = schedule::make_schedule("gpipe", {.ranks = 2, .microbatches = 2});
  EXPECT_EQ(misplaced_tag(drawn(schedule, {.forward = 0})), "");
  EXPECT_EQ(misplaced_tag(drawn(schedule, {.forward = 0, .backward = 0})), "");
}

TEST(ScheduleSvg, ANameIsTextWhateverItHolds) {
  Schedule schedule = schedule::make_schedule("gpipe", {.ranks = 1, .microbatches = 1});
  schedule.name = "</svg><script>\"&\xFF";
  const std::string picture = drawn(schedule);
  EXPECT_EQ(misplaced_tag(picture), "");
  EXPECT_EQ(occurrences(picture, "<script"), 0u);
}

}  // namespace
}  // namespace penstock::render
