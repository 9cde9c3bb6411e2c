// The kernels behind a step's backwards, by their bytes.  That a run launches these,
// tests/process/emulate_test.py shows.
#include "penstock/plan/choose/step_end.h"

#include <gtest/gtest.h>

namespace penstock::choose {
namespace {

constexpr std::int64_t kElements = 1 << 20;
constexpr MemorySpeed kByteASecond{.bytes_per_s = kElements};  // Results are bytes an element.

partition::Parameter parameter(std::int64_t bytes, std::int64_t sums = 0) {
  return {.element_bytes = bytes, .elements = kElements, .sum_element_bytes = sums};
}

StepEnd end_of(const partition::Parameter& one, const partition::SharingRules& rules,
               std::int32_t microbatches) {
  return step_end({&one}, {.rules = rules, .states_per_element = 2}, microbatches, kByteASecond);
}

TEST(StepEnd, AnUpdateMovesMastersStatesAndTheNormsDoubles) {
  const StepEnd end = end_of(parameter(2), {}, 1);
  // Zeros, a copy, squares, halves; comparing masters; float gradients; Adam; the short type.
  const double norm = 8 + (2 + 8) + 24 + 24, update = 6 + 5 + 1 + 6 + 32 + 6;
  EXPECT_NEAR(end.update, norm + update, 0.5);
  EXPECT_DOUBLE_EQ(end.first_backward, -6);  // Nothing is there to add to.
  EXPECT_DOUBLE_EQ(end.later_backward, 0);
  EXPECT_DOUBLE_EQ(end.in_backward, 0);
  EXPECT_NEAR(end_of(parameter(4), {}, 1).update, 8 + (4 + 8) + 24 + 24 + 32, 0.5);
}

TEST(StepEnd, MeansOfMicrobatchesAreDividedOnce) {
  EXPECT_DOUBLE_EQ(end_of(parameter(2), {}, 4).in_backward, 4);
}

TEST(StepEnd, OwnersUpdateTheirSharesAndAddWhatOthersSend) {
  const partition::SharingRules rules{.stage = partition::ZeroStage::OptimizerStates, .ranks = 4};
  const StepEnd whole = end_of(parameter(2), {.ranks = 4}, 1), cut = end_of(parameter(2), rules, 1);
  EXPECT_NEAR(cut.update, whole.update / 4, 0.5);
  // A copy and a division; the sum of four in float.
  const double sum = (6.0 + 3 * 10 + 6) / 4;
  EXPECT_NEAR(cut.in_backward, 8 + sum, 0.01);
  EXPECT_DOUBLE_EQ(cut.after_sums, 0);
  EXPECT_NEAR(whole.in_backward, 8, 0.01);
  EXPECT_DOUBLE_EQ(whole.after_sums, sum + 1);  // It goes back to its bucket.
}

TEST(StepEnd, FusedKernelsReadWhatIsThereOnce) {
  const partition::Parameter one = parameter(2, 4);
  const memory::Sharing sharing{.states_per_element = 2};
  const StepEnd end = fused_step_end({&one}, sharing, kByteASecond);
  EXPECT_DOUBLE_EQ(end.update, 4 + (4 + 24 + 2));
  EXPECT_DOUBLE_EQ(end.later_backward, 0);
  EXPECT_DOUBLE_EQ(end.in_backward, 0);
  const partition::Parameter frozen{.elements = kElements, .is_trainable = false};
  EXPECT_DOUBLE_EQ(fused_step_end({&frozen}, sharing, kByteASecond).update, 0);
}

TEST(StepEnd, SumsApartAreAddedInEveryBackward) {
  const StepEnd end = end_of(parameter(2, 4), {}, 2);
  EXPECT_DOUBLE_EQ(end.first_backward, 6 - 6);
  EXPECT_DOUBLE_EQ(end.later_backward, 10 - 6);
}

TEST(StepEnd, AKernelTakesItsLeast) {
  const partition::Parameter none = parameter(4);
  const StepEnd slow =
      step_end({&none}, {.states_per_element = 2}, 1, {.bytes_per_s = 1e30, .kernel_s = 1});
  // Three, six halves and fourteen halves of blocks for the norm; the update.
  EXPECT_DOUBLE_EQ(slow.update, 3 + 6 + 14 + 1);
  EXPECT_DOUBLE_EQ(step_end({&none}, {}, 1, {}).update, 0);
}

}  // namespace
}  // namespace penstock::choose
