// One Lowering for all ranks, and the order in which it waits for sends.
#include "penstock/plan/lower/lowering.h"

#include <gtest/gtest.h>

#include <vector>

#include "penstock/plan/lower/sends_under_way.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/schedule/generators/generators.h"

namespace penstock::lower {
namespace {

using verify::VerifiedSchedule;

partition::Partition one_layer_per_stage(std::int32_t stages) {
  partition::Partition partition;
  for (std::int32_t s = 0; s <= stages; ++s) partition.bounds.push_back(s);
  return partition;
}

TEST(Lowering, PlansOfOneLoweringAreThoseOfEachRankAlone) {
  for (const char* name : {"interleaved_1f1b", "looped_bfs", "forward_only"}) {
    const auto verified = VerifiedSchedule::from(schedule::lower_communication(
        schedule::make_schedule(name, {.ranks = 3, .stages_per_rank = 2, .microbatches = 6})));
    const auto mesh = mesh::make_mesh(6, {.pipe = 3, .data = 2});
    const auto partition = one_layer_per_stage(6);
    const Lowering lowering(verified, partition, mesh);
    for (const std::int32_t r : {5, 0, 3, 1, 2, 4, 0}) {
      EXPECT_EQ(to_string(lowering.plan(Rank(r))),
                to_string(lower(verified, partition, mesh, Rank(r))))
          << name;
    }
  }
}

using Sends = std::vector<std::size_t>;

Sends proved(SendsUnderWay& sends) {
  Sends taken;
  sends.take_proved([&](std::size_t send) { taken.push_back(send); });
  return taken;
}

TEST(SendsUnderWay, AreOverOnceTheirPeerHasUsedThemUp) {
  SendsUnderWay sends(2);
  sends.add(0, 7, 10);
  sends.add(0, 3, 11);
  sends.add(1, 1, 12);
  EXPECT_EQ(proved(sends), Sends{});
  sends.prove(0, 2);
  EXPECT_EQ(proved(sends), Sends{});
  sends.prove(0, 3);
  EXPECT_EQ(proved(sends), Sends{11});
  sends.prove(0, 9);
  sends.prove(1, 9);
  EXPECT_EQ(proved(sends), (Sends{10, 12}));
}

TEST(SendsUnderWay, AreTakenInTheOrderOfSendingAndOnce) {
  SendsUnderWay sends(1);
  const std::vector<std::int32_t> uses = {9, 2, 7, 4, 5};
  for (std::size_t i = 0; i < uses.size(); ++i) sends.add(0, uses[i], i);
  sends.prove(0, 4);
  sends.prove(0, 7);
  EXPECT_EQ(proved(sends), (Sends{1, 2, 3, 4}));
  EXPECT_EQ(proved(sends), Sends{});
}

}  // namespace
}  // namespace penstock::lower
