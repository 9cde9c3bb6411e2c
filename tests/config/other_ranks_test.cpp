#include "penstock/config/other_ranks.h"

#include <gtest/gtest.h>

namespace penstock::config {
namespace {

// 2 x 2 ranks, 8 samples a step in microbatches of 1.
const RankLayout kBefore = {
    .mesh = {.pipe = 2, .data = 2},
    .batch = {.train_batch_size = 8, .micro_batch_size = 1, .microbatches = 4}};

TEST(OtherRanks, KeepTheSamplesOfAStep) {
  const auto two = layouts_on(2, kBefore);
  ASSERT_EQ(two.size(), 2U);
  EXPECT_EQ(two[0].mesh, (mesh::Shape{.pipe = 2, .data = 1}));
  EXPECT_EQ(two[0].batch, (Batch{8, 1, 8}));
  EXPECT_EQ(two[1].mesh, (mesh::Shape{.pipe = 1, .data = 2}));
  EXPECT_EQ(two[1].batch, (Batch{8, 1, 4}));
  EXPECT_TRUE(layouts_on(3, kBefore).empty());  // 3 does not divide 8.
  EXPECT_EQ(layouts_on(4, kBefore).front(), kBefore);
}

TEST(OtherRanks, HaveNoMoreStagesThanBefore) {
  for (const RankLayout& layout : layouts_on(8, kBefore)) EXPECT_LE(layout.mesh.pipe, 2);
}

TEST(OtherRanks, AreWhatTheirOverridesSay) {
  const RankLayout after = layouts_on(2, kBefore).front();
  const Config config = with_layout({}, after);
  EXPECT_EQ(resolve_mesh(config.mesh, 2), after.mesh);
  EXPECT_EQ(resolve_batch(config.batch, after.mesh), after.batch);
  std::vector<std::string> origins;
  for (const Override& each : overrides_of(after)) origins.push_back(each.origin);
  EXPECT_EQ(origins,
            (std::vector<std::string>{
                "--set mesh.pipe=2", "--set mesh.data=1", "--set train_batch_size=8",
                "--set train_micro_batch_size_per_gpu=1", "--set gradient_accumulation_steps=8"}));
}

TEST(OtherRanks, SayWhatChanges) {
  EXPECT_EQ(change_text(kBefore, layouts_on(2, kBefore).front()),
            "pipe(2) x data(1) for pipe(2) x data(2), 8 microbatches a replica for 4; 8 samples a "
            "step as before");
}

}  // namespace
}  // namespace penstock::config
