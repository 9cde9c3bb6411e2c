// A rerouted program is one of all ranks that are left, in the memory that it was given.
#include "penstock/plan/search/reroute.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/plan/search/search.h"
#include "penstock/plan/simulate/lower_bounds.h"
#include "penstock/schedule/generators/generators.h"
#include "tests/support/schedules.h"

namespace penstock::search {
namespace {

using schedule::Schedule;
using verify::VerifiedSchedule;

VerifiedSchedule made(std::string_view name, std::int32_t ranks, std::int32_t microbatches,
                      std::int32_t stages_per_rank = 1) {
  return VerifiedSchedule::from(schedule::make_schedule(
      name, {.ranks = ranks, .stages_per_rank = stages_per_rank, .microbatches = microbatches}));
}

double makespan(const VerifiedSchedule& schedule, const simulate::Costs& costs = {}) {
  return simulate::simulate(schedule, costs).makespan;
}

TEST(Reroute, OnlyTheStagesOfTheLostRankMove) {
  const VerifiedSchedule one = made("1f1b", 3, 4);
  // Rank 3 is place 1 of the pipe, replica 1, of two.
  const RemainingRun after = reroute({.schedule = one, .replicas = 2, .lost = {Rank(3)}});
  const Schedule& schedule = after.schedule.schedule();
  EXPECT_EQ(title(schedule), "1f1b without rank 3(ranks=5, stages=3, microbatches=8, replicas=2)");
  const schedule::Homes& homes = after.schedule.facts().homes;
  for (std::int32_t m = 0; m < 8; ++m) {
    const std::int32_t replica = m % 2;
    EXPECT_EQ(homes.of(StageId(0), Microbatch(m)), Rank(replica));
    EXPECT_EQ(homes.of(StageId(1), Microbatch(m)), Rank(2));
    EXPECT_EQ(homes.of(StageId(2), Microbatch(m)), Rank(3 + replica));
  }
}

// Each rank with the stage has as many of the lost rank's microbatches as any other, or one more.
TEST(Reroute, PeersShareAlike) {
  for (const std::int32_t microbatches : {1, 4, 7}) {
    const VerifiedSchedule one = made("1f1b", 2, microbatches);
    const RemainingRun after =
        reroute({.schedule = one, .replicas = 4, .lost = {Rank(1), Rank(6)}});
    std::map<std::int32_t, std::set<std::size_t>> sizes;  // By place of the pipe.
    const std::vector<Rank> left =
        left_of({.schedule = one, .replicas = 4, .lost = {Rank(1), Rank(6)}});
    for (std::size_t rank = 0; rank < left.size(); ++rank) {
      std::size_t forwards = 0;
      for (const auto& action : after.schedule.schedule().programs[rank]) {
        forwards += action.op == schedule::Op::Forward;
      }
      sizes[left[rank].value / 4].insert(forwards);
    }
    for (const auto& [place, counts] : sizes) {
      EXPECT_LE(*counts.rbegin() - *counts.begin(), 1U) << microbatches << " place " << place;
    }
  }
}

// Of any generator, any loss: it verifies with its messages, under the channels that our lowering
// is for, holds no more than allowed, and no bound says that it is faster than can be.
TEST(Reroute, AnyRankOfAnySchedule) {
  for (const std::string_view name : {"gpipe", "1f1b", "zb_h1", "zbv", "interleaved_1f1b"}) {
    const std::int32_t per_rank = name == "zbv" || name == "interleaved_1f1b" ? 2 : 1;
    const VerifiedSchedule one = made(name, 3, 3, per_rank);
    const auto peaks = simulate::simulate(one).peak_memory;
    for (std::int32_t rank = 0; rank < 6; ++rank) {
      const RemainingRun after = reroute({.schedule = one, .replicas = 2, .lost = {Rank(rank)}});
      EXPECT_LE(std::ranges::max(after.simulation.peak_memory), std::ranges::max(peaks));
      for (const auto& bound : simulate::lower_bounds(after.schedule)) {
        EXPECT_LE(bound.makespan, after.simulation.makespan) << bound.name;
      }
      const Schedule lowered = schedule::lower_communication(after.schedule.schedule());
      for (const verify::Channels channels :
           {verify::Channels::Tagged, verify::Channels::DirFifo, verify::Channels::PairFifo}) {
        EXPECT_TRUE(verify::verify(lowered, {.channels = channels}).diagnostics.empty())
            << name << " " << rank << "\n"
            << grid(lowered);
      }
    }
  }
}

TEST(Reroute, RandomCostsMemoryAndLosses) {
  testing_support::Random random;
  SCOPED_TRACE(random.seed_text());
  for (int trial = 0; trial < 15; ++trial) {
    const std::int32_t ranks = random.between(1, 4);
    const std::int32_t replicas = random.between(2, 4);
    const VerifiedSchedule one = made("1f1b", ranks, random.between(1, 6));
    std::vector<double> forward, activation;
    for (std::int32_t s = 0; s < ranks; ++s) {
      forward.push_back(random.one_of<double>({0.3, 1, 1.7}));
      activation.push_back(random.one_of<double>({0.5, 1, 2}));
    }
    LostRanks loss{.schedule = one,
                   .replicas = replicas,
                   .lost = {Rank(random.between(0, ranks * replicas - 1))},
                   .costs = {.forward = forward,
                             .latency = random.one_of<double>({0, 0.05, 2}),
                             .activation = activation,
                             .keep = random.one_of<double>({0.4, 1})},
                   .memory_max = random.one_of<double>({2, 3.5, 8})};
    if (random.chance(0.3)) loss.costs.bandwidth = 4;
    if (random.chance(0.3)) loss.costs.backward = 1.5;
    const RemainingRun after = reroute(loss);
    EXPECT_LE(std::ranges::max(after.simulation.peak_memory), *loss.memory_max);
    EXPECT_EQ(after.simulation.makespan, makespan(after.schedule, after.costs));
    EXPECT_EQ(reroute(loss).schedule.schedule(), after.schedule.schedule());
    for (const auto& bound : simulate::lower_bounds(after.schedule, after.costs)) {
      EXPECT_LE(bound.makespan, after.simulation.makespan * (1 + 1e-12)) << bound.name;
    }
  }
}

// The rank that took over is busy all the time but for the way to it and back.
TEST(Reroute, FillsThePeersBubbles) {
  const VerifiedSchedule one = made("1f1b", 4, 8);
  const double expected[] = {51, 50, 50, 51};
  for (std::int32_t place = 0; place < 4; ++place) {
    const LostRanks loss{.schedule = one, .replicas = 2, .lost = {Rank(2 * place)}};
    EXPECT_EQ(reroute(loss).simulation.makespan, expected[place]) << place;
    EXPECT_EQ(reshard(loss)->remaining.simulation.makespan, 51);
  }
}

TEST(Reshard, AsManyPipelinesAsTheRanksMake) {
  const VerifiedSchedule one = made("1f1b", 2, 4);
  const auto three = reshard({.schedule = one, .replicas = 4, .lost = {Rank(0)}});
  EXPECT_EQ(three->replicas, 3);
  EXPECT_EQ(three->microbatches, 6);  // 16 on 3 replicas.
  EXPECT_EQ(three->remaining.schedule.schedule().microbatches, 6);
  EXPECT_FALSE(reshard({.schedule = one, .replicas = 2, .lost = {Rank(0), Rank(2), Rank(1)}}));
}

// What an exception says.
template <class Error, class Run>
std::string message_of(const Run& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.message();
  }
  return "nothing was thrown";
}

TEST(Reroute, RefusesWhatCannotBe) {
  const VerifiedSchedule one = made("1f1b", 2, 4);
  const auto refusal = [&](LostRanks loss) {
    return message_of<ConfigError>([&] { reroute(loss); });
  };
  EXPECT_EQ(refusal({.schedule = one, .replicas = 1, .lost = {Rank(0)}}),
            "reroute: replicas 1: expected 2 or more; nobody else has the stages of a single one");
  EXPECT_EQ(refusal({.schedule = one, .replicas = 2, .lost = {Rank(4)}}),
            "reroute: lost rank 4: expected a rank from 0 to 3: 2 ranks of the pipe x 2 replicas");
  EXPECT_EQ(refusal({.schedule = one, .replicas = 2, .lost = {Rank(1), Rank(1)}}),
            "reroute: lost rank 1 is named twice");
  EXPECT_EQ(refusal({.schedule = one, .replicas = 2, .lost = {}}),
            "reroute: no rank is lost: name one or more");
  const simulate::PerStage uneven = std::vector<std::vector<double>>{{0, 0, 1, 1}, {0, 0, 1, 1}};
  for (const simulate::Costs& costs :
       {simulate::Costs{.forward_exchange = uneven}, simulate::Costs{.input_exchange = uneven},
        simulate::Costs{.backward_exchange = uneven}}) {
    EXPECT_EQ(refusal({.schedule = one, .replicas = 2, .lost = {Rank(1)}, .costs = costs}),
              "reroute: costs by microbatch: a replica gets other microbatches; expected a number, "
              "or one per stage");
  }
  EXPECT_EQ(
      refusal({.schedule = made("forward_only", 2, 4), .replicas = 2, .lost = {Rank(0)}}),
      "reroute: forward_only(ranks=2, stages=2, microbatches=4) has no backwards: a step that "
      "trains is expected");
  EXPECT_EQ(message_of<Infeasible>(
                [&] { reroute({.schedule = one, .replicas = 2, .lost = {Rank(0), Rank(1)}}); }),
            "reroute: all 2 ranks at place 0 of the pipe are lost: nobody else has their stages");
  EXPECT_EQ(message_of<Infeasible>([&] {
              reroute({.schedule = one, .replicas = 2, .lost = {Rank(0)}, .memory_max = 0.5});
            }),
            "reroute: no schedule of these ranks holds at most 0.5: one microbatch's activations, "
            "on all stages of a rank, take 1");
}

}  // namespace
}  // namespace penstock::search
