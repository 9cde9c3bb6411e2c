#include "penstock/plan/render/loss_svg.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/render/svg_text.h"

namespace penstock::render {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<LossPoint> falling(std::size_t count) {
  std::vector<LossPoint> points;
  for (std::size_t i = 0; i < count; ++i) {
    const double step = static_cast<double>(i);
    points.push_back({step, 4.0 / (1.0 + step)});
  }
  return points;
}

// All points of all lines.
std::size_t drawn_points(std::string_view picture) {
  constexpr std::string_view name = "points=\"";
  std::size_t count = 0;
  for (std::size_t at = picture.find(name); at != std::string_view::npos;
       at = picture.find(name, at + 1)) {
    const std::size_t begin = at + name.size();
    count += occurrences(picture.substr(begin, picture.find('"', begin) - begin), ",");
  }
  return count;
}

TEST(LossSvg, NothingIsSaidToBeNothing) {
  const std::string picture = loss_svg({.title = "empty <run>"});
  EXPECT_EQ(misplaced_tag(picture), "");
  EXPECT_EQ(occurrences(picture, ">no losses to draw</text>"), 1u);
  EXPECT_EQ(occurrences(picture, ">empty &lt;run&gt;</text>"), 1u);
  EXPECT_EQ(loss_svg({.train = {{0, kNan}}, .title = "empty <run>"}), picture);
}

TEST(LossSvg, OnePointIsAMark) {
  const std::string picture = loss_svg({.train = {{0, 2.5}}});
  EXPECT_EQ(misplaced_tag(picture), "");
  EXPECT_EQ(occurrences(picture, "<circle"), 1u);
  EXPECT_EQ(occurrences(picture, "<polyline"), 0u);
  EXPECT_EQ(occurrences(picture, ">training 2.5000</text>"), 1u);
}

TEST(LossSvg, AFewPointsAreOneLineWithoutAMean) {
  const std::string picture = loss_svg({.train = falling(10), .validation = {{4, 1}, {9, 0.5}}});
  EXPECT_EQ(occurrences(picture, "<polyline"), 2u);
  EXPECT_EQ(occurrences(picture, "<circle"), 2u);
  EXPECT_EQ(occurrences(picture, "mean of"), 0u);
  EXPECT_EQ(occurrences(picture, ">training 0.4000</text>"), 1u);
  EXPECT_EQ(occurrences(picture, ">validation 0.5000</text>"), 1u);
}

TEST(LossSvg, SeveralValidationSetsHaveALineAndALabelEach) {
  const std::string picture = loss_svg({.train = falling(10),
                                        .validation = {{4, 1}, {9, 0.5}},
                                        .validation_name = "chats",
                                        .others = {{"code", {{4, 1}, {9, 0.52}}}, {"empty", {}}},
                                        .best = LossPoint{9, 0.5}});
  EXPECT_EQ(misplaced_tag(picture), "");
  EXPECT_EQ(occurrences(picture, "<polyline"), 3u);
  EXPECT_EQ(occurrences(picture, "<circle"), 5u) << "two points a set, and the ring of the best";
  for (const char* const label : {">chats 0.5000</text>", ">code 0.5200</text>",
                                  ">validation loss of chats</text>", ">of code</text>"}) {
    EXPECT_EQ(occurrences(picture, label), 1u) << label;
  }
  EXPECT_EQ(occurrences(picture, "empty"), 0u) << "a set without points";
}

TEST(LossSvg, ManyPointsHaveAMean) {
  const std::string picture = loss_svg({.train = falling(400)});
  EXPECT_EQ(occurrences(picture, "<polyline"), 2u);
  EXPECT_EQ(occurrences(picture, ">mean of 13 points</text>"), 1u);
}

TEST(LossSvg, AtMostTwoThousandPointsAreDrawn) {
  const std::string picture = loss_svg({.train = falling(100'000), .validation = falling(9000)});
  EXPECT_EQ(misplaced_tag(picture), "");
  EXPECT_LE(drawn_points(picture), 2000u);
  EXPECT_GE(drawn_points(picture), 1500u);
  EXPECT_EQ(occurrences(picture, "<circle"), 0u) << "so many marks would hide the line";
}

TEST(LossSvg, LossesThatAreNotFiniteAreLeftOut) {
  std::vector<LossPoint> points = falling(30);
  const std::string without = loss_svg({.train = points});
  points.insert(points.begin() + 7, {6.5, kNan});
  points.push_back({30, std::numeric_limits<double>::infinity()});
  EXPECT_EQ(loss_svg({.train = points}), without);
}

TEST(LossSvg, TheOrderOfThePointsDoesNotMatter) {
  std::vector<LossPoint> points = falling(30);
  const std::string rising = loss_svg({.train = points});
  std::reverse(points.begin(), points.end());
  EXPECT_EQ(loss_svg({.train = points}), rising);
}

TEST(LossSvg, ExtremeLossesAreNoTrouble) {
  for (const double loss : {0.0, -3.0, 1e-30, 1e30, 9e99, -9e99}) {
    const std::string flat = loss_svg({.train = {{0, loss}, {1, loss}}});
    const std::string steep = loss_svg({.train = {{0, loss}, {1, 1}, {1, -loss}}});
    for (const std::string& picture : {flat, steep}) {
      EXPECT_EQ(misplaced_tag(picture), "") << loss;
      EXPECT_EQ(occurrences(picture, "nan") + occurrences(picture, "inf"), 0u) << loss;
    }
  }
}

TEST(LossSvg, WithoutMarksThePictureIsAsHighAsEver) {
  EXPECT_NE(loss_svg({.train = falling(30)}).find("height=\"448\""), std::string::npos);
  EXPECT_EQ(loss_svg({.marks = {.saved = {3}, .breaks = {{4, "x"}}}}), loss_svg({}))
      << "nothing to mark without losses";
}

TEST(LossSvg, SavesAreTicksThatDoNotLieOnEachOther) {
  const std::string few = loss_svg({.train = falling(30), .marks = {.saved = {10, 20}}});
  EXPECT_EQ(misplaced_tag(few), "");
  EXPECT_EQ(occurrences(few, "<title>saved after step 10</title>"), 1u);
  EXPECT_EQ(occurrences(few, "<title>saved after step "), 2u);
  EXPECT_EQ(occurrences(few, ">saved</text>"), 1u) << "and the legend says what they are";
  std::vector<double> many;
  for (double step = 0; step < 100'000; ++step) many.push_back(step);
  const std::string dense = loss_svg({.train = falling(100'000), .marks = {.saved = many}});
  EXPECT_LE(occurrences(dense, "<title>saved after step "), 732u) << "one a pixel";
}

TEST(LossSvg, ABreakHasALineANumberAndItsCauseInTheList) {
  const LossMarks marks = {.breaks = {{9, "after step 9: a < b"}, {20, "stopped", true}, {29, "x"}},
                           .again = {{5, 9}}};
  const std::string picture = loss_svg({.train = falling(30), .marks = marks});
  EXPECT_EQ(misplaced_tag(picture), "");
  EXPECT_EQ(occurrences(picture, ">after step 9: a &lt; b</text>"), 1u);
  EXPECT_EQ(occurrences(picture, "<title>after step 9: a &lt; b</title>"), 1u);
  const std::string without = loss_svg({.train = falling(30)});
  EXPECT_EQ(occurrences(picture, ">3</text>"), occurrences(without, ">3</text>") + 2)
      << "at the line, and in the list";
  EXPECT_EQ(occurrences(picture, "<title>steps 6 to 9 were done again</title>"), 1u);
  EXPECT_EQ(occurrences(picture, "height=\"448\""), 0u) << "the list takes room below";
}

TEST(LossSvg, NumbersOfNearBreaksShareAPlaceAndALongListIsCounted) {
  LossMarks marks;
  for (int i = 0; i < 11; ++i) marks.breaks.push_back({20.0 + 0.01 * i, "x"});
  const std::string picture = loss_svg({.train = falling(30), .marks = marks});
  EXPECT_EQ(occurrences(picture,
                        ">1\xE2\x80\x93"
                        "11</text>"),
            1u);
  EXPECT_EQ(occurrences(picture, ">x</text>"), 8u);
  EXPECT_EQ(occurrences(picture, ">3 more</text>"), 1u);
}

TEST(LossSvg, StepsThatWereLostBehindTheCurveAreInThePicture) {
  const LossMarks marks = {.breaks = {{60, "after step 60: x"}}, .again = {{20, 60}}};
  const std::string picture = loss_svg({.train = falling(30), .marks = marks});
  EXPECT_EQ(occurrences(picture, ">60</text>"), 1u) << "a tick of the axis";
}

}  // namespace
}  // namespace penstock::render
