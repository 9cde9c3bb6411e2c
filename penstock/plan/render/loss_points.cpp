#include "penstock/plan/render/loss_points.h"

#include <algorithm>
#include <cmath>

#include "penstock/core/check.h"

namespace penstock::render {
namespace {

// Sums and differences of drawn values stay finite by far.
constexpr double kLargest = 1e100;

bool is_drawable(double value) { return std::abs(value) < kLargest; }

bool has_smaller_loss(const LossPoint& a, const LossPoint& b) { return a.loss < b.loss; }

}  // namespace

std::vector<LossPoint> drawable(const std::vector<LossPoint>& points) {
  std::vector<LossPoint> result;
  for (const LossPoint& point : points) {
    if (is_drawable(point.step) && is_drawable(point.loss)) result.push_back(point);
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const LossPoint& a, const LossPoint& b) { return a.step < b.step; });
  return result;
}

std::vector<LossPoint> smoothed(const std::vector<LossPoint>& points, std::size_t reach) {
  std::vector<LossPoint> result = points;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const std::size_t begin = i - std::min(i, reach);
    const std::size_t end = std::min(i + reach + 1, points.size());
    double sum = 0;
    for (std::size_t j = begin; j < end; ++j) sum += points[j].loss;
    result[i].loss = sum / static_cast<double>(end - begin);
  }
  return result;
}

std::vector<LossPoint> thinned(const std::vector<LossPoint>& points, std::size_t count_max) {
  PENSTOCK_CHECK(count_max >= 4, count_max);
  if (points.size() <= count_max) return points;
  const std::size_t runs = (count_max - 2) / 2;
  const std::size_t inner = points.size() - 2;
  std::vector<LossPoint> result{points.front()};
  for (std::size_t run = 0; run < runs; ++run) {
    const auto begin = points.begin() + 1 + static_cast<std::ptrdiff_t>(run * inner / runs);
    const auto end = points.begin() + 1 + static_cast<std::ptrdiff_t>((run + 1) * inner / runs);
    auto [first, second] = std::minmax_element(begin, end, has_smaller_loss);
    if (second < first) std::swap(first, second);
    result.push_back(*first);
    if (first != second) result.push_back(*second);
  }
  result.push_back(points.back());
  return result;
}

}  // namespace penstock::render
