#include "penstock/render/loss_svg.h"

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

}  // namespace
}  // namespace penstock::render
