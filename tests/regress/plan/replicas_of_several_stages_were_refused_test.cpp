// Eight replicas of several stages a rank were refused under ZeRO 3: the proof had receives of a
// sum begin when it is awaited, behind those of a later page, where a run begins them at once.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "penstock/plan/lower/device_proof.h"
#include "penstock/plan/lower/programs.h"

namespace penstock::lower {
namespace {

TEST(ReplicasOfSeveralStagesWereRefused, TheyAreProvedInEveryOrder) {
  for (const std::string name : {"interleaved_1f1b", "zbv"}) {
    const auto schedule = training_program({.schedule = name, .ranks = 1, .microbatches = 4});
    partition::Partition partition{.bounds = {0, 1, 2}};
    const DeviceOrder order = device_order(
        schedule, partition, mesh::make_mesh({.pipe = 1, .data = 8}),
        {.sharing = {.stage = config::ZeroStage::Parameters, .ranks = 8}, .sums = {2, 2}});
    const DeviceProof proof = prove(order, {});
    EXPECT_EQ(proof.objection, "") << name;
    EXPECT_TRUE(proof.is_of_every_order) << name;
  }
}

}  // namespace
}  // namespace penstock::lower
