// Programs of several replicas: a stage has a copy on some ranks, and each microbatch passes it on
// one of them.
#include <gtest/gtest.h>

#include "penstock/core/text.h"
#include "penstock/plan/schedule/json.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/plan/simulate/lower_bounds.h"
#include "penstock/simulate/simulate.h"
#include "penstock/verify/verify.h"
#include "tests/support/schedules.h"

namespace penstock::verify {
namespace {

using schedule::Schedule;

Schedule of_replicas(std::int32_t replicas, const std::vector<std::string>& programs) {
  Schedule schedule = testing_support::rows(programs);
  schedule.replicas = replicas;
  return schedule;
}

// Two replicas of two stages.  The second one's rank of stage 1 is lost: its microbatch 1 passes
// that stage on the other one's.
Schedule rerouted() { return of_replicas(2, {"0F0,0B0", "0F1,0B1", "1F0,1B0,1F1,1B1"}); }

std::string objections(const Schedule& schedule) {
  std::vector<std::string> lines;
  for (const Diagnostic& diagnostic : verify(schedule).diagnostics) {
    lines.push_back(split(to_string(diagnostic), '\n')[0]);
  }
  return join(lines, "\n");
}

TEST(VerifyReplicas, AMicrobatchPassesAStageOnOneOfItsRanks) {
  EXPECT_EQ(objections(rerouted()), "");
  const auto verified = VerifiedSchedule::from(rerouted());
  const schedule::Homes& homes = verified.facts().homes;
  EXPECT_EQ(homes.ways(), 2U);
  EXPECT_EQ(homes.of(StageId(0), Microbatch(0)), Rank(0));
  EXPECT_EQ(homes.of(StageId(0), Microbatch(1)), Rank(1));
  EXPECT_EQ(homes.of(StageId(1), Microbatch(0)), Rank(2));
  EXPECT_EQ(homes.of(StageId(1), Microbatch(1)), Rank(2));
}

TEST(VerifyReplicas, TheSameProgramsAreNoneOfOneReplica) {
  Schedule schedule = rerouted();
  schedule.replicas = 1;
  EXPECT_EQ(objections(schedule),
            "rank 1 step 0: 0F1 runs stage 0 [S003]\n"
            "rank 1 step 1: 0B1 runs stage 0 [S003]");
}

TEST(VerifyReplicas, AStageHasNoMoreCopiesThanReplicas) {
  EXPECT_EQ(objections(of_replicas(2, {"0F0,0B0", "0F1,0B1", "0F2,0B2"})),
            "rank 2 step 0: 0F2 runs stage 0 [S003]");
}

TEST(VerifyReplicas, AMicrobatchStaysOnTheRankOfItsForward) {
  EXPECT_EQ(objections(of_replicas(2, {"0F0,0B1", "0F1,0B0"})),
            "rank 1 step 0: 0F1 runs microbatch 1 of stage 0 [S003]\n"
            "rank 1 step 1: 0B0 runs microbatch 0 of stage 0 [S003]");
}

TEST(VerifyReplicas, EveryMicrobatchRunsOnceOnEveryStage) {
  EXPECT_EQ(objections(of_replicas(2, {"0F0,0B0", "0F1,0B1", "1F0,1B0,1F1"})),
            "1B1 is missing [S004]");
  EXPECT_EQ(objections(of_replicas(2, {"0F0,0B0", "0F1,0B1", "1F0,1B0"})),
            "1F1 is missing [S004]\n1B1 is missing [S004]");
  EXPECT_EQ(objections(of_replicas(2, {"0F0,0B0", "0F1,0B1,0F0", "1F0,1B0,1F1,1B1"})),
            "rank 1 step 2: 0F0 runs again [S005]");
}

TEST(VerifyReplicas, WaitsInACircleAreFoundAcrossReplicas) {
  // Each of the two ranks wants the other's microbatch first.
  EXPECT_EQ(objections(of_replicas(2, {"0F0,1F1,1B1,0B0", "0F1,1F0,1B0,0B1"})), "");
  EXPECT_EQ(objections(of_replicas(2, {"1F1,0F0,0B0,1B1", "1F0,0F1,0B1,1B0"})),
            "rank 0 step 0: 1F1 waits for itself: deadlock [S030]");
}

TEST(VerifyReplicas, EveryCopyOfAStageReducesItsGradients) {
  const Schedule reduced = schedule::add_reduce_gradients(rerouted());
  EXPECT_EQ(grid(reduced),
            "rank 0: 0F0 0B0 0REDUCE_GRAD\n"
            "rank 1: 0F1 0B1 0REDUCE_GRAD\n"
            "rank 2: 1F0 1B0 1F1 1B1 1REDUCE_GRAD\n");
  EXPECT_EQ(objections(reduced), "");
  Schedule missing = reduced;
  missing.programs[1].pop_back();
  EXPECT_EQ(objections(missing),
            "stage 0 has no REDUCE_GRAD on rank 1, other ranks with the stage have one [S041]");
  Schedule early = reduced;
  std::swap(early.programs[1][1], early.programs[1][2]);
  EXPECT_EQ(objections(early), "rank 1 step 1: 0REDUCE_GRAD runs before 0B1 [S040]");
  Schedule twice = reduced;
  twice.programs[1].push_back(twice.programs[1].back());
  EXPECT_EQ(objections(twice), "rank 1 step 3: 0REDUCE_GRAD runs again [S005]");
}

TEST(VerifyReplicas, MessagesGoTheWayOfTheirMicrobatch) {
  const Schedule lowered = schedule::lower_communication(rerouted());
  for (const Channels channels : kChannels) {
    EXPECT_TRUE(verify(lowered, {.channels = channels}).diagnostics.empty()) << grid(lowered);
  }
  Schedule unsent = lowered;
  std::erase_if(unsent.programs[1], [](const auto& action) { return is_send(action.op); });
  EXPECT_EQ(objections(unsent), "rank 2 step 1: 1RECV_F1 has no partner 0SEND_F1 [S021]");
}

TEST(VerifyReplicas, AValueWaitsForTheWayThatItTakes) {
  // F, B of two units each; the second microbatch waits for the shared rank.
  const auto verified = VerifiedSchedule::from(rerouted());
  const auto simulation = simulate::simulate(verified, {.latency = 0.5});
  EXPECT_EQ(simulation.makespan, 1 + 0.5 + 3 + 3 + 0.5 + 2);
  EXPECT_EQ(simulation.waits.size(), 3U);
  for (const auto& bound : simulate::lower_bounds(verified, {.latency = 0.5})) {
    EXPECT_LE(bound.makespan, simulation.makespan) << bound.name;
  }
  // A link of its own for each two ranks: that from rank 1 is slow.
  const auto slow =
      simulate::simulate(verified, {.links = {{.from = Rank(1), .to = Rank(2), .latency = 10}}});
  EXPECT_EQ(slow.makespan, 1 + 10 + 3 + 2);
}

TEST(VerifyReplicas, JsonKeepsTheNumberOfReplicas) {
  const schedule::Document read = schedule::parse_json(schedule::to_json(rerouted()), "a.json");
  EXPECT_EQ(read.schedule, rerouted());
  EXPECT_THROW(
      schedule::parse_json(R"({"replicas": 2, "placement": [0], "programs": [["0F0"], ["0F1"]]})",
                           "a.json"),
      ParseError);
  EXPECT_THROW(schedule::parse_json(R"({"replicas": 0, "programs": [["0F0"]]})", "a.json"),
               ParseError);
}

}  // namespace
}  // namespace penstock::verify
