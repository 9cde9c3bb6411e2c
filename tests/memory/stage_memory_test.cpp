#include "penstock/plan/memory/stage_memory.h"

#include <gtest/gtest.h>

namespace penstock::memory {
namespace {

// Keeps 100 beside its input of 10 and its output of 10; half of it from I to W.
LayerMemory layer() {
  return {.parameters = {{.name = "w", .elements = 5}},  // 20 bytes.
          .output = 10,
          .input_gradient = 10,
          .kept = 100,
          .keeps_input = true,
          .half_kept = 50,
          .half_keeps_input = true,
          .half_keeps_gradient = false,
          .forward_peak = 130,
          .plain_forward_peak = 60,
          .backward_peak = {.first = 50, .later = 40},
          .input_peak = 30,
          .weight_peak = {.first = 25, .later = 22}};
}

StageLayers two_layers(bool is_recomputed) {
  StageLayers stage{.layers = {layer(), layer()}, .segments = {{0, 2, is_recomputed}}};
  stage.layers[1].parameters[0].name = "v";
  return stage;
}

TEST(StageMemory, AForwardKeepsWhatItsLayersDoAndEachBoundaryOnce) {
  const Pass pass = StageMemory(two_layers(false)).forward();
  EXPECT_EQ(pass.after.activations, 100 + 10 + 100 + 10);
  EXPECT_EQ(pass.peak, 110 + 130);
}

TEST(StageMemory, ABoundaryThatNobodyNeedsGoes) {
  StageLayers stage = two_layers(false);
  stage.layers[1].keeps_input = false;
  EXPECT_EQ(StageMemory(stage).forward().after.activations, 100 + 100 + 10);
}

TEST(StageMemory, ABackwardFreesAllThatItsForwardKept) {
  for (const bool is_recomputed : {false, true}) {
    const StageMemory stage(two_layers(is_recomputed));
    const Pass first = stage.backward({.is_first = true});
    EXPECT_EQ(first.after.activations + stage.forward().after.activations, 0);
    EXPECT_EQ(first.after.gradients, 40);
    EXPECT_EQ(stage.backward({}).after.gradients, 0);
  }
}

TEST(StageMemory, TheGradientsOfLaterLayersAreThereWhileAnEarlierOneRuns) {
  // After the last layer its 100 are gone, and its gradients of 20 and those of its input are
  // there.
  const Pass pass = StageMemory(two_layers(false)).backward({.is_first = true});
  EXPECT_EQ(pass.peak, 50);
  StageLayers steep = two_layers(false);
  steep.layers[0].backward_peak.first = 200;
  // The boundary goes with the layer that is the last to need it.
  EXPECT_EQ(StageMemory(steep).backward({.is_first = true}).peak, -100 - 10 + 10 + 20 + 200);
  steep.layers[0].keeps_output = true;
  EXPECT_EQ(StageMemory(steep).backward({.is_first = true}).peak, -100 + 10 + 20 + 200);
}

TEST(StageMemory, ASegmentThatIsComputedAgainKeepsNothingButItsInput) {
  const StageMemory stage(two_layers(true));
  EXPECT_EQ(stage.forward().after.activations, 0);
  EXPECT_FALSE(stage.keeps_output());
  EXPECT_EQ(stage.forward().peak, 10 + 60);
  EXPECT_EQ(stage.backward({}).peak, 220 + 40) << "all activations are there again";
}

TEST(StageMemory, SegmentsOfOneLayerAreComputedAgainOneByOne) {
  StageLayers layers = two_layers(true);
  layers.segments = {{0, 1, true}, {1, 2, true}};
  const StageMemory stage(layers);
  EXPECT_EQ(stage.forward().after.activations, 10) << "the boundary";
  EXPECT_EQ(stage.backward({}).peak, 110 + 40) << "one layer's activations at a time";
  EXPECT_EQ(stage.backward({}).after.activations, -10);
}

TEST(StageMemory, IAndWTogetherFreeWhatTheForwardKept) {
  const StageMemory stage(two_layers(false));
  const Pass input = stage.backward_input();
  EXPECT_EQ(input.after.activations, -50 - 50 - 10) << "the output goes, the boundary is W's";
  EXPECT_EQ(stage.forward().after.activations + input.after.activations +
                stage.backward_weight({}).after.activations,
            0);
}

TEST(StageMemory, TheLossIsBehindTheLastLayer) {
  StageLayers layers = two_layers(true);
  layers.loss = LayerMemory{
      .output = 1, .input_gradient = 10, .kept = 30, .forward_peak = 35, .plain_forward_peak = 35};
  const StageMemory stage(layers);
  EXPECT_TRUE(stage.keeps_output());
  EXPECT_EQ(stage.forward().after.activations, 10 + 30 + 1);
  EXPECT_EQ(stage.backward({}).after.activations, -41);
}

TEST(StageMemory, GradientsLeaveInTheLastBackwardBucketByBucket) {
  StageLayers layers = two_layers(false);
  layers.buckets = {{.parameters = {1}, .rows = 24, .flight = 24},
                    {.parameters = {0}, .rows = 24, .flight = 24}};
  const Pass last = StageMemory(layers).backward({.is_last = true});
  EXPECT_EQ(last.after.gradients, -40);
  EXPECT_EQ(last.after.buckets, 4 * 24);
  layers.buckets = {{.parameters = {0, 1}, .rows = 48, .flight = 48}};
  EXPECT_EQ(StageMemory(layers).backward({.is_last = true}).after.buckets, 2 * 48);
  EXPECT_EQ(StageMemory(layers).backward({}).after.buckets, 0);
}

TEST(StageMemory, OfSumsUnderWayTheOldestEndsBeforeTheNextBucketLeaves) {
  StageLayers layers = two_layers(false);
  layers.buckets = {{.parameters = {1}, .rows = 24, .flight = 12},
                    {.parameters = {0}, .rows = 20, .flight = 10}};
  const Pass all = StageMemory(layers).backward({.is_last = true});
  layers.sums_under_way = 1;
  const Pass bounded = StageMemory(layers).backward({.is_last = true});
  EXPECT_EQ(all.after.buckets, 24 + 12 + 20 + 10);
  EXPECT_EQ(bounded.after.buckets, 20 + 10);
  layers.sums_under_way = 2;
  EXPECT_EQ(StageMemory(layers).backward({.is_last = true}).peak, all.peak);
}

}  // namespace
}  // namespace penstock::memory
