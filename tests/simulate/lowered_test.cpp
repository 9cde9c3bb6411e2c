// Programs with their messages, gathers and reductions in place: when everything happens.
#include <gtest/gtest.h>

#include <algorithm>

#include "penstock/core/text.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/simulate/simulate.h"
#include "tests/support/golden.h"
#include "tests/support/schedules.h"

namespace penstock::simulate {
namespace {

using testing_support::rows;
using verify::Channels;
using verify::Communication;
using verify::VerifiedSchedule;

// "0F0@0-1 0B0@3-5": events of one rank.
std::string timeline(const std::vector<Event>& events, std::int32_t rank) {
  std::vector<std::string> texts;
  for (const Event& event : events) {
    if (event.rank.value != rank) continue;
    texts.push_back(str(event.action, "@", event.start, "-", event.end));
  }
  return join(texts, " ");
}

Simulation run(const std::vector<std::string>& programs, const Costs& costs,
               const verify::Options& options = {}) {
  return simulate(VerifiedSchedule::from(rows(programs), options), costs);
}

const std::vector<std::string> kTwoRanks = {"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1",
                                            "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1"};

TEST(SimulateLowered, AMessageSetsOutWhenBothEndsArePosted) {
  const Simulation result = run(kTwoRanks, {.latency = 0.25});
  EXPECT_EQ(timeline(result.events, 0), "0F0@0-1 0F1@1-2 0B0@4.5-6.5 0B1@7.5-9.5");
  EXPECT_EQ(timeline(result.events, 1), "1F0@1.25-2.25 1B0@2.25-4.25 1F1@4.25-5.25 1B1@5.25-7.25");
  // 1RECV_F1 is posted behind 1F0, when 0SEND_F1 has waited for it.
  EXPECT_EQ(timeline(result.transfers, 1), "0SEND_F0@1-1.25 0SEND_F1@2.25-2.5");
  EXPECT_EQ(timeline(result.transfers, 0), "1SEND_B0@4.25-4.5 1SEND_B1@7.25-7.5");
}

TEST(SimulateLowered, InOneQueuePerPairTheNextMessageWaitsForTheArrival) {
  const std::vector<std::string> programs = {"0F0,0F1,0SEND_F0,0SEND_F1",
                                             "1RECV_F0,1RECV_F1,1F0,1F1"};
  const Costs costs{.latency = 4};
  EXPECT_EQ(timeline(run(programs, costs).transfers, 1), "0SEND_F0@2-6 0SEND_F1@2-6");
  EXPECT_EQ(timeline(run(programs, costs, {.channels = Channels::DirFifo}).transfers, 1),
            "0SEND_F0@2-6 0SEND_F1@2-6");
  for (const Channels channels : {Channels::PairFifo, Channels::RankFifo}) {
    EXPECT_EQ(timeline(run(programs, costs, {.channels = channels}).transfers, 1),
              "0SEND_F0@2-6 0SEND_F1@6-10");
  }
}

TEST(SimulateLowered, OneQueuePerRankAlsoWaitsForOtherPeers) {
  // Rank 1 receives from rank 0 and sends to rank 2.
  const std::vector<std::string> programs = {"0F0,0SEND_F0,0F1,0SEND_F1",
                                             "1RECV_F0,1RECV_F1,1F0,1SEND_F0,1F1,1SEND_F1",
                                             "2RECV_F0,2F0,2RECV_F1,2F1"};
  const Costs costs{.latency = 2};
  EXPECT_EQ(timeline(run(programs, costs, {.channels = Channels::PairFifo}).transfers, 2),
            "1SEND_F0@4-6 1SEND_F1@7-9");
  EXPECT_EQ(timeline(run(programs, costs, {.channels = Channels::RankFifo}).transfers, 2),
            "1SEND_F0@5-7 1SEND_F1@8-10");
}

TEST(SimulateLowered, BlockingCommunicationKeepsTheRank) {
  const Simulation result =
      run(kTwoRanks, {.latency = 0.25}, {.communication = Communication::Blocking});
  EXPECT_EQ(timeline(result.events, 0), "0F0@0-1 0F1@1.25-2.25 0B0@4.75-6.75 0B1@8-10");
  EXPECT_EQ(timeline(result.events, 1), "1F0@1.25-2.25 1B0@2.5-4.5 1F1@4.75-5.75 1B1@5.75-7.75");
  EXPECT_EQ(result.busy, (std::vector{6.0, 6.0}));
}

TEST(SimulateLowered, BlockingSendsAreWaitsForTheirReceives) {
  const Simulation result = run({"0F0,0SEND_F0,0RECV_B0,0B0", "1RECV_F0,1F0,1B0,1SEND_B0"},
                                {.latency = 1}, {.communication = Communication::Blocking});
  ASSERT_EQ(result.waits.size(), 4u);
  const auto text = [&](std::size_t i) {
    const Wait& wait = result.waits[i];
    return str("rank ", wait.rank, " ", to_string(wait.op), " of ", wait.peer, " ", wait.time);
  };
  EXPECT_EQ(text(0), "rank 0 SEND_B of 1 4");
  EXPECT_EQ(text(1), "rank 0 RECV_F of 1 1");
  EXPECT_EQ(text(2), "rank 1 SEND_F of 0 2");
  EXPECT_EQ(text(3), "rank 1 RECV_B of 0 1");
}

TEST(SimulateLowered, ALinkWithABandwidthCarriesOneMessageAtATime) {
  const std::vector<std::string> programs = {"0F0,0F1,0SEND_F0,0SEND_F1",
                                             "1RECV_F0,1RECV_F1,1F0,1F1"};
  // Size 6 at 2 a unit of time occupies the link for 3; the latency does not.
  const Simulation result = run(programs, {.latency = 1, .message = 6, .bandwidth = 2});
  EXPECT_EQ(timeline(result.transfers, 1), "0SEND_F0@2-6 0SEND_F1@5-9");
  EXPECT_EQ(result.makespan, 10);
}

TEST(SimulateLowered, LinksServeInTheOrderOfTime) {
  // Both stages of rank 0 send to rank 1; what is ready first goes first, whoever is asked first.
  const std::vector<std::string> programs = {"2RECV_F0,0F0,0SEND_F0,2F0,2SEND_F0",
                                             "1RECV_F0,3RECV_F0,1F0,1SEND_F0,3F0"};
  const Simulation result =
      run(programs, {.message = std::vector<double>{8, 1, 1, 1}, .bandwidth = 1});
  EXPECT_EQ(timeline(result.transfers, 1), "0SEND_F0@1-9 2SEND_F0@12-13");
  const Simulation plain = run({"0F0,0F1", "1F0,1F1"}, {.message = 4, .bandwidth = 1});
  EXPECT_EQ(timeline(plain.transfers, 1), "0SEND_F0@1-5 0SEND_F1@5-9")
      << "the same in programs without messages";
}

TEST(SimulateLowered, SingleLinksMayDiffer) {
  const Costs costs{.latency = 1,
                    .message = 4,
                    .links = {{.from = Rank(1), .to = Rank(0), .latency = 2, .bandwidth = 8}}};
  const Simulation result = run({"0F0,0B0", "1F0,1B0"}, costs);
  EXPECT_EQ(timeline(result.transfers, 1), "0SEND_F0@1-2");
  EXPECT_EQ(timeline(result.transfers, 0), "1SEND_B0@5-7.5");
}

TEST(SimulateLowered, MessagesHaveTheSizeOfTheLowerStagesOutput) {
  const Simulation result = run({"0F0,0B0", "1F0,1B0", "2F0,2B0"},
                                {.message = std::vector<double>{1, 16, 100}, .bandwidth = 4});
  EXPECT_EQ(timeline(result.transfers, 1), "0SEND_F0@1-1.25 2SEND_B0@9.25-13.25");
  EXPECT_EQ(timeline(result.transfers, 0), "1SEND_B0@15.25-15.5");
}

TEST(SimulateLowered, GathersAndReductionsRunBesideTheCompute) {
  const Simulation result =
      run({"0UNSHARD,1UNSHARD,0F0,1F0,1B0,1REDUCE_GRAD,1RESHARD,0B0,0REDUCE_GRAD,0RESHARD"},
          {.gather = std::vector<double>{0.5, 2}, .reduce = std::vector<double>{1, 4}});
  EXPECT_EQ(timeline(result.streams, 0),
            "0UNSHARD@0-0.5 1UNSHARD@0.5-2.5 1REDUCE_GRAD@5.5-9.5 0REDUCE_GRAD@9.5-10.5");
  EXPECT_EQ(timeline(result.events, 0), "0F0@0.5-1.5 1F0@2.5-3.5 1B0@3.5-5.5 0B0@5.5-7.5");
  EXPECT_EQ(result.makespan, 10.5) << "the makespan ends with the last reduction";
  EXPECT_EQ(result.unshard_peak, std::vector{2});
  EXPECT_EQ(result.span, std::vector{7.0});
}

TEST(SimulateLowered, TheOptimizerRunsWhenAllIsOver) {
  EXPECT_EQ(run({"0F0,0B0,0REDUCE_GRAD"}, {.reduce = 2, .optimizer = 1.5}).makespan, 6.5);
}

TEST(SimulateLowered, AnOverlappedPairTakesItsShareOfBoth) {
  const Simulation result = run({"0F0,(0F1;0B0)OVERLAP_F_B,0B1"}, {.overlap = 0.75});
  EXPECT_EQ(timeline(result.events, 0), "0F0@0-1 0F1@1-1.75 0B0@1.75-3.25 0B1@3.25-5.25");
  EXPECT_EQ(result.busy, std::vector{5.25});
}

TEST(SimulateLowered, CostsMayDifferByMicrobatch) {
  const PerStage forward = std::vector<std::vector<double>>{{1, 5}, {2}};
  const Simulation result = run({"0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"}, {.forward = forward});
  EXPECT_EQ(timeline(result.events, 0), "0F0@0-1 0F1@1-6 0B0@6-8 0B1@10-12");
  EXPECT_EQ(timeline(result.events, 1), "1F0@1-3 1B0@3-5 1F1@6-8 1B1@8-10");
}

TEST(SimulateLowered, MemoryFollowsTheActivationsThroughTime) {
  const Simulation result = run({"0F0,0I0,0F1,0I1,0W0,0W1"}, {.activation = 8, .keep = 0.25});
  std::vector<std::string> points;
  for (const MemoryPoint& point : result.memory.at(0)) {
    points.push_back(str(point.time, ":", point.memory));
  }
  EXPECT_EQ(join(points, " "), "0:8 2:2 2:10 4:4 5:2 6:0");
  EXPECT_EQ(result.peak_memory, std::vector{10.0});
  EXPECT_EQ(result.peak_activations, std::vector{2});
}

TEST(SimulateLowered, TotalsAreTheSameWithoutTheEvents) {
  const auto verified = VerifiedSchedule::from(schedule::lower_communication(
      schedule::make_schedule("zbv", {.ranks = 4, .stages_per_rank = 2, .microbatches = 9})));
  const Costs costs{.latency = 0.25, .message = 3, .bandwidth = 4, .reduce = 1};
  const Simulation events = simulate(verified, costs);
  const Simulation totals = simulate(verified, costs, Detail::Totals);
  EXPECT_EQ(totals.makespan, events.makespan);
  EXPECT_EQ(totals.busy, events.busy);
  EXPECT_EQ(totals.span, events.span);
  EXPECT_EQ(totals.peak_memory, events.peak_memory);
  EXPECT_EQ(totals.waits.size(), events.waits.size());
  EXPECT_TRUE(totals.events.empty() && totals.transfers.empty() && totals.streams.empty() &&
              totals.memory.empty() && totals.critical_path.empty());
  EXPECT_EQ(events.memory.size(), 4u);
}

}  // namespace
}  // namespace penstock::simulate
