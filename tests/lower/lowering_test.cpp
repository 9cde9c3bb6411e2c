// One Lowering for all ranks, and the order in which it waits for sends.
#include "penstock/lower/lowering.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "penstock/lower/sends_under_way.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/schedule/passes/passes.h"

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

std::vector<std::string> proved(SendsUnderWay<std::string>& sends) {
  std::vector<std::string> taken;
  sends.take_proved([&](std::string send) { taken.push_back(std::move(send)); });
  return taken;
}

TEST(SendsUnderWay, AreOverOnceTheirPeerHasUsedThemUp) {
  SendsUnderWay<std::string> sends;
  sends.add(Rank(1), 7, "a");
  sends.add(Rank(1), 3, "b");
  sends.add(Rank(2), 1, "c");
  EXPECT_EQ(proved(sends), std::vector<std::string>{});
  sends.prove(Rank(1), 2);
  EXPECT_EQ(proved(sends), std::vector<std::string>{});
  sends.prove(Rank(1), 3);
  EXPECT_EQ(proved(sends), std::vector<std::string>{"b"});
  sends.prove(Rank(1), 9);
  sends.prove(Rank(2), 9);
  EXPECT_EQ(proved(sends), (std::vector<std::string>{"a", "c"}));
}

TEST(SendsUnderWay, AreTakenInTheOrderOfSendingAndOnce) {
  SendsUnderWay<std::string> sends;
  const std::vector<std::int32_t> uses = {9, 2, 7, 4, 5};
  for (std::size_t i = 0; i < uses.size(); ++i) sends.add(Rank(1), uses[i], std::to_string(i));
  sends.prove(Rank(1), 4);
  sends.prove(Rank(1), 7);
  EXPECT_EQ(proved(sends), (std::vector<std::string>{"1", "2", "3", "4"}));
  EXPECT_EQ(proved(sends), std::vector<std::string>{});
}

}  // namespace
}  // namespace penstock::lower
