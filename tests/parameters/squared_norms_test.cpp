#include "penstock/runtime/parameters/squared_norms.h"

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>

#include "penstock/partition/ownership.h"
#include "tests/support/foreign_device.h"

namespace penstock::parameters {
namespace {

std::vector<double> subtree_squares(const at::Tensor& values, std::int64_t first) {
  return parameters::subtree_squares({{values, first}}).front();
}

double total_of_cuts(const at::Tensor& values, const std::vector<Cut>& cuts) {
  std::vector<double> subtrees;
  for (const Cut& cut : cuts) {
    const auto some = subtree_squares(values.narrow(0, cut.first, cut.count), cut.first);
    EXPECT_EQ(std::ssize(some), count_subtrees(cut));
    subtrees.insert(subtrees.end(), some.begin(), some.end());
  }
  return total_of_squares(cuts, subtrees);
}

TEST(SquaredNorms, NoCutIntoShardsChangesABit) {
  for (const std::int64_t elements : {1, 63, 64, 65, 500, 4096, 30001}) {
    const at::Tensor values = at::randn({elements}) * at::randn({elements}).exp();
    const double whole = total_of_cuts(values, {{0, elements}});
    for (std::int32_t ranks = 1; ranks <= 9; ++ranks) {
      const auto ownership = partition::own(
          {{.name = "before", .elements = 130}, {.name = "it", .elements = elements}},
          {.stage = config::ZeroStage::OptimizerStates,
           .ranks = ranks,
           .one_rank_has_pieces = true});
      const auto slices = ownership.slices_by_parameter();
      std::vector<Cut> cuts;
      for (const auto& each : slices[1]) {
        cuts.push_back({each.slice.first, each.slice.count});
      }
      EXPECT_EQ(total_of_cuts(values, cuts), whole) << elements << " over " << ranks;
    }
  }
}

// Sums of doubles: a few hundred of their roundings.
TEST(SquaredNorms, AreTorchsForEveryType) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const at::Tensor values = at::randn({71, 43}).to(type);
    const double norm = at::linalg_vector_norm(values.to(at::kDouble)).item<double>();
    const double ours =
        std::sqrt(total_of_squares({{0, values.numel()}}, subtree_squares(values, 0)));
    EXPECT_NEAR(ours, norm, 1e-13 * norm) << c10::toString(type);
  }
}

TEST(SquaredNorms, GoByElementsAndNotByMemory) {
  const at::Tensor values = at::randn({70, 50});
  EXPECT_EQ(subtree_squares(values.t(), 0), subtree_squares(values.t().contiguous(), 0));
}

// More elements than a device squares at once, in cuts that have their ends anywhere.
TEST(SquaredNorms, OfADeviceComeByOneCopyInAnOrderThatNoCutChanges) {
  const std::int64_t elements = (std::int64_t{1} << 24) + 64 * 5 + 3;
  const at::Tensor values = at::randn({elements});
  const at::Tensor there = values.to(c10::Device(testing_support::kForeign, 0));
  const testing_support::DeviceCounts before = testing_support::device_counts();
  const double whole = total_of_cuts(there, {{0, elements}});
  EXPECT_EQ((testing_support::device_counts() - before).copies_out, 1);
  EXPECT_NEAR(whole / total_of_cuts(values, {{0, elements}}), 1.0, 1e-14);
  const std::int64_t a = 64 * 3, b = 64 * 100'001;
  EXPECT_EQ(total_of_cuts(there, {{0, a}, {a, b - a}, {b, elements - b}}), whole);
}

}  // namespace
}  // namespace penstock::parameters
