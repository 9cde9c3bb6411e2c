#include "penstock/plan/render/loss_points.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace penstock::render {
namespace {

using Points = std::vector<LossPoint>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Points losses(const std::vector<double>& values) {
  Points points;
  for (const double value : values) {
    points.push_back({static_cast<double>(points.size()), value});
  }
  return points;
}

// A saw of many teeth with one high peak and one deep valley.
Points saw(std::size_t count) {
  Points points;
  for (std::size_t i = 0; i < count; ++i) {
    const double loss = i == count / 3 ? 100 : i == count / 2 ? -100 : static_cast<double>(i % 7);
    points.push_back({static_cast<double>(i), loss});
  }
  return points;
}

TEST(Drawable, LeavesOutWhatIsNotFiniteAndSorts) {
  EXPECT_EQ(drawable({{3, 1}, {1, kNan}, {2, 4}, {0, kInfinity}, {kNan, 2}, {5, 1e200}}),
            (Points{{2, 4}, {3, 1}}));
}

TEST(Smoothed, IsTheMeanOfTheNeighbours) {
  EXPECT_EQ(smoothed(losses({0, 3, 6, 0}), 1), losses({1.5, 3, 3, 3}));
  EXPECT_EQ(smoothed(losses({1, 2, 3}), 0), losses({1, 2, 3}));
  EXPECT_EQ(smoothed(losses({1, 2, 3}), 9), losses({2, 2, 2}));
  EXPECT_EQ(smoothed({}, 3), Points{});
}

TEST(Thinned, KeepsFewPointsAsTheyAre) { EXPECT_EQ(thinned(saw(50), 50), saw(50)); }

TEST(Thinned, KeepsTheEndsThePeaksAndTheOrder) {
  for (const std::size_t count : {51u, 99u, 1000u, 12345u}) {
    const Points all = saw(count);
    const Points few = thinned(all, 50);
    EXPECT_LE(few.size(), 50u);
    EXPECT_EQ(few.front(), all.front());
    EXPECT_EQ(few.back(), all.back());
    EXPECT_EQ(std::count_if(few.begin(), few.end(), [](auto p) { return p.loss > 99; }), 1);
    EXPECT_EQ(std::count_if(few.begin(), few.end(), [](auto p) { return p.loss < -99; }), 1);
    EXPECT_TRUE(
        std::is_sorted(few.begin(), few.end(), [](auto a, auto b) { return a.step < b.step; }));
  }
}

TEST(Thinned, AFlatLineStaysALine) {
  const Points few = thinned(Points(1000, {1, 2}), 10);
  EXPECT_LE(few.size(), 10u);
  EXPECT_GE(few.size(), 6u);
}

}  // namespace
}  // namespace penstock::render
