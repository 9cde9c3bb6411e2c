#include "penstock/runtime/parameters/squared_norms.h"

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>

#include "penstock/partition/ownership.h"

namespace penstock::parameters {
namespace {

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

}  // namespace
}  // namespace penstock::parameters
