#include "penstock/plan/choose/fewer_ranks.h"

#include <gtest/gtest.h>

#include "penstock/plan/choose/rerouting.h"
#include "penstock/plan/config/resolve.h"

namespace penstock::choose {
namespace {

// 2 x 2 ranks, 8 samples a step in microbatches of 1.
const Layout kBefore = {.mesh = {.pipe = 2, .data = 2}, .schedule = "1f1b", .microbatches = 4};

config::Config config_of(const Layout& layout) { return with_layout({}, layout); }

// The same, with 2 ranks to a layer: 8 ranks.
Layout shared_before() {
  Layout layout = kBefore;
  layout.mesh = layout.mesh.with(mesh::Axis::Tensor, 2);
  return layout;
}

TEST(FewerRanks, KeepTheSamplesOfAStep) {
  const auto two = layouts_on(2, kBefore);
  ASSERT_EQ(two.size(), 2U);
  EXPECT_EQ(two[0].mesh, (mesh::Shape{.pipe = 2, .data = 1}));
  EXPECT_EQ(two[0].microbatches, 8);
  EXPECT_EQ(two[1].mesh, (mesh::Shape{.pipe = 1, .data = 2}));
  EXPECT_EQ(two[1].microbatches, 4);
  for (const Layout& each : two) EXPECT_EQ(each.samples(), 8);
  EXPECT_TRUE(layouts_on(3, kBefore).empty());  // 3 does not divide 8.
  EXPECT_EQ(layouts_on(4, kBefore).front(), kBefore);
}

TEST(FewerRanks, HaveNoMoreStagesThanBefore) {
  for (const Layout& layout : layouts_on(8, kBefore)) EXPECT_LE(layout.mesh.pipe, 2);
}

TEST(FewerRanks, ShareLayersAsBefore) {
  const Layout before = shared_before();
  const auto four = layouts_on(4, before);
  ASSERT_EQ(four.size(), 2U);
  EXPECT_EQ(four[0].mesh, (mesh::Shape{.pipe = 2, .data = 1}.with(mesh::Axis::Tensor, 2)));
  EXPECT_EQ(four[0].microbatches, 8);
  EXPECT_EQ(four[1].mesh, (mesh::Shape{.pipe = 1, .data = 2}.with(mesh::Axis::Tensor, 2)));
  EXPECT_EQ(four[1].microbatches, 4);
  ASSERT_EQ(layouts_on(2, before).size(), 1U);
  for (const int ranks : {1, 3, 5, 7}) EXPECT_TRUE(layouts_on(ranks, before).empty()) << ranks;
  EXPECT_TRUE(layouts_on(6, before).empty());  // 3 replicas do not divide 8 samples.
  const auto best = layout_on(4, "test", config_of(before), before, RunCosts(2));
  ASSERT_TRUE(best);
  EXPECT_EQ(best->layout, four[0]);
  EXPECT_EQ(change_text(before, best->layout),
            "pipe(2) x data(1) x tensor(2) for pipe(2) x data(2) x tensor(2), 8 microbatches a "
            "replica for 4; 8 samples a step as before");
}

TEST(Rerouting, IsNotForRanksThatShareLayers) {
  const auto why_not = [](const Layout& layout) {
    const config::Config config = config_of(layout);
    return Rerouting(config, layout).why_not();
  };
  EXPECT_EQ(why_not(kBefore), "");
  EXPECT_EQ(why_not(shared_before()),
            "ranks that share layers run one program, and a rerouted one has whole layers");
}

TEST(FewerRanks, SayWhatChanges) {
  EXPECT_EQ(change_text(kBefore, layouts_on(2, kBefore).front()),
            "pipe(2) x data(1) for pipe(2) x data(2), 8 microbatches a replica for 4; 8 samples a "
            "step as before");
}

TEST(FewerRanks, HoldAsLittleAsTheyCan) {
  const auto best = layout_on(2, "test", config_of(kBefore), kBefore, RunCosts(2));
  ASSERT_TRUE(best);
  EXPECT_EQ(best->layout.mesh, (mesh::Shape{.pipe = 2, .data = 1}));
}

// ZeRO 3 cuts parameters as stages do.  Without a bubble a step is then shorter: 8 samples through
// two stages take 9 turns of a third of the time, on two replicas 4.
TEST(FewerRanks, AreTheFastestOfThoseThatHoldAsMuch) {
  Layout before = kBefore;
  before.zero = config::ZeroStage::Parameters;
  const auto best = layout_on(2, "test", config_of(before), before, RunCosts(2));
  ASSERT_TRUE(best);
  EXPECT_EQ(best->layout.mesh, (mesh::Shape{.pipe = 1, .data = 2}));
}

TEST(FewerRanks, AreNoneWhereNoneCanRun) {
  Layout before = kBefore;
  before.schedule.clear();
  before.file = "there_is_none.json";
  EXPECT_FALSE(layout_on(2, "test", config_of(before), before, RunCosts(2)));
}

}  // namespace
}  // namespace penstock::choose
