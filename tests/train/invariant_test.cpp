// GradientSums::Invariant: the same bits for every number of replicas and stages, every schedule
// and every stage of ZeRO.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <string>

#include "tests/train/trained.h"

namespace penstock::train {
namespace {

struct Layout {
  const char* schedule = "1f1b";
  std::int32_t pipe = 1;
  std::int32_t data = 1;
  std::int32_t stages_per_rank = 1;
};

constexpr std::int64_t kSteps = 5;
constexpr std::int32_t kMicrobatches = 12;  // Of all replicas.

TrainerOptions options_of(const Layout& layout, GradientSums sums) {
  return {.mesh = {.pipe = layout.pipe, .data = layout.data},
          .schedule = layout.schedule,
          .stages_per_rank = layout.stages_per_rank,
          .microbatches = kMicrobatches / layout.data,
          .partition = partition::Uniform{},
          .optimizer = {.lr = 3e-3, .weight_decay = 0.1},
          .gradient_clipping = 0.5,
          .sums = sums};
}

class Invariant : public testing::TestWithParam<const char*> {};

TEST_P(Invariant, EveryLayoutHasTheSameBitsAtEveryStep) {
  const Kind kind = kind_named(GetParam());
  std::vector<Batch2> batches;
  for (int i = 0; i < kSteps; ++i) batches.push_back(kind.batch(2 * kMicrobatches, kSequence));
  const Trained one = train(options_of({}, GradientSums::Invariant), kind, batches);
  for (const Layout& layout : {Layout{"gpipe", 1, 2}, Layout{"1f1b", 1, 3}, Layout{"1f1b", 1, 4},
                               Layout{"zb_h1", 2, 2}, Layout{"looped_bfs", 2, 1, 2},
                               Layout{"zbv", 2, 2, 2}, Layout{"interleaved_1f1b", 2, 3, 2}}) {
    EXPECT_TRUE(same(train(options_of(layout, GradientSums::Invariant), kind, batches), one))
        << layout.schedule << " " << layout.pipe << " x " << layout.data;
  }
}

constexpr std::array kStages = {ZeroStage::OptimizerStates, ZeroStage::Gradients,
                                ZeroStage::Parameters};

TEST_P(Invariant, EveryStageOfZeroHasTheSameBits) {
  const Kind kind = kind_named(GetParam());
  std::vector<Batch2> batches;
  for (int i = 0; i < kSteps; ++i) batches.push_back(kind.batch(2 * kMicrobatches, kSequence));
  const Trained one = train(options_of({}, GradientSums::Invariant), kind, batches);
  for (const Layout& layout : {Layout{"gpipe", 1, 2}, Layout{"1f1b", 1, 3}, Layout{"zb_h1", 2, 2},
                               Layout{"zbv", 2, 2, 2}}) {
    for (const ZeroStage stage : kStages) {
      TrainerOptions options = options_of(layout, GradientSums::Invariant);
      // Small ones: parameters of several in each stage, and several slices of a parameter.
      options.zero = {.stage = stage, .bucket_bytes = 4096};
      EXPECT_TRUE(same(train(options, kind, batches), one))
          << layout.schedule << " " << layout.pipe << " x " << layout.data << ", ZeRO "
          << static_cast<int>(stage);
    }
  }
}

TEST(InvariantInFiles, HasTheSameBits) {
  const Kind kind = kind_named("Gpt");
  std::vector<Batch2> batches;
  for (int i = 0; i < kSteps; ++i) batches.push_back(kind.batch(2 * kMicrobatches, kSequence));
  const Trained one = train(options_of({}, GradientSums::Invariant), kind, batches);
  for (const std::int32_t data : {1, 2}) {
    TrainerOptions options = options_of({"1f1b", 2, data}, GradientSums::Invariant);
    options.zero.stage = ZeroStage::Parameters;
    const std::string folder = std::filesystem::temp_directory_path();
    options.offload = {.states = {offload::Place::File, folder},
                       .parameters = {offload::Place::File, folder}};
    EXPECT_TRUE(same(train(options, kind, batches), one)) << data;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Invariant,
                         testing::Values("Gpt", "GptWithDropout", "Ties", "Skips"),
                         [](const auto& kind) { return kind.param; });

TEST(InvariantIsNeeded, AsTheyComeReplicasAddInAnotherOrder) {
  const Kind kind = kind_named("Gpt");
  std::vector<Batch2> batches;
  for (int i = 0; i < kSteps; ++i) batches.push_back(kind.batch(2 * kMicrobatches, kSequence));
  const Trained one = train(options_of({}, GradientSums::AsTheyCome), kind, batches);
  EXPECT_FALSE(
      same(train(options_of({"gpipe", 1, 2}, GradientSums::AsTheyCome), kind, batches), one));
}

}  // namespace
}  // namespace penstock::train
