#include "penstock/plan/measure/fit.h"

#include <gtest/gtest.h>

#include <cmath>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/measure/drift.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/schedule/generators/generators.h"
#include "tests/support/message_of.h"
#include "tests/support/random.h"
#include "tests/support/recordings.h"
#include "tests/support/schedules.h"

namespace penstock::measure {
namespace {

using schedule::Op;
using simulate::Costs;
using testing_support::recording_of;
using verify::VerifiedSchedule;

VerifiedSchedule lowered(const std::string& name, std::int32_t stages_per_rank = 1,
                         std::int32_t ranks = 2, std::int32_t microbatches = 4) {
  return VerifiedSchedule::from(schedule::lower_communication(schedule::make_schedule(
      name, {.ranks = ranks, .stages_per_rank = stages_per_rank, .microbatches = microbatches})));
}

std::vector<MeasuredStep> steps_in(const Recording& recording, const VerifiedSchedule& schedule) {
  std::vector<MeasuredStep> steps;
  for (const std::int64_t step : steps_of(recording)) {
    for (std::int32_t replica = 0; replica < replicas(recording); ++replica) {
      steps.push_back(measured_step(recording, schedule, step, replica));
    }
  }
  return steps;
}

Fit fit_to(const VerifiedSchedule& schedule, const std::vector<Costs>& steps) {
  return fit(steps_in(recording_of(schedule, steps), schedule), schedule);
}

// Times go through whole nanoseconds and back: what is left is the rounding of a few sums.
constexpr double kRounding = 1e-9;

void expect_costs(const verify::PerStage& fitted, const std::vector<double>& expected) {
  for (std::size_t stage = 0; stage < expected.size(); ++stage) {
    EXPECT_NEAR(fitted.at(StageId(stage), Microbatch(0)), expected[stage], kRounding) << stage;
  }
}

TEST(Fit, FindsTheCostsOfWholeBackwards) {
  const auto schedule = lowered("1f1b");
  const Fit fitted =
      fit_to(schedule, {{.forward = std::vector<double>{1.5, 1.25},
                         .backward = verify::PerStage(std::vector<double>{2.5, 3.75}),
                         .latency = 0.125}});
  expect_costs(fitted.costs.forward, {1.5, 1.25});
  ASSERT_TRUE(fitted.costs.backward);
  expect_costs(*fitted.costs.backward, {2.5, 3.75});
  EXPECT_NEAR(fitted.costs.latency, 0.125, kRounding);
  EXPECT_FALSE(fitted.costs.bandwidth) << "all messages have one size";
  EXPECT_TRUE(fitted.has_guessed_halves);
  expect_costs(fitted.costs.input, {1.25, 1.875});
  expect_costs(fitted.costs.weight, {1.25, 1.875});
}

TEST(Fit, FindsTheCostsOfSplitBackwards) {
  const auto schedule = lowered("zbv", 2);
  const Fit fitted = fit_to(schedule, {{.forward = std::vector<double>{1, 2, 3, 4},
                                        .input = std::vector<double>{1.5, 2.5, 3.5, 4.5},
                                        .weight = std::vector<double>{0.5, 0.75, 1, 1.25},
                                        .latency = 0.25}});
  expect_costs(fitted.costs.forward, {1, 2, 3, 4});
  expect_costs(fitted.costs.input, {1.5, 2.5, 3.5, 4.5});
  expect_costs(fitted.costs.weight, {0.5, 0.75, 1, 1.25});
  EXPECT_FALSE(fitted.costs.backward);
  EXPECT_FALSE(fitted.has_guessed_halves);
  EXPECT_NEAR(fitted.costs.latency, 0.25, kRounding);
}

TEST(Fit, FindsTheBandwidthWhereStagesHandOnDifferentSizes) {
  const auto schedule = lowered("1f1b", 1, 4, 6);
  const Costs costs{.forward = 4,
                    .backward = verify::PerStage(8),
                    .latency = 0.125,
                    .message = std::vector<double>{1000, 2000, 4000, 0},
                    .bandwidth = 4000};
  const Fit fitted = fit_to(schedule, {costs});
  EXPECT_NEAR(fitted.costs.latency, 0.125, kRounding);
  ASSERT_TRUE(fitted.costs.bandwidth);
  EXPECT_NEAR(*fitted.costs.bandwidth, 4000, 1e-3);
  expect_costs(fitted.costs.message, {1000, 2000, 4000, 0});
}

TEST(Fit, EachMicrobatchHasItsCostsWhereTheirSizesDiffer) {
  const auto schedule = lowered("1f1b", 1, 2, 3);
  const std::vector<std::vector<double>> forward = {{1, 2, 3}, {2, 4, 6}};
  const Fit fitted =
      fit_to(schedule,
             {{.forward = forward, .message = std::vector<std::vector<double>>{{8, 16, 24}, {0}}}});
  for (std::int32_t stage = 0; stage < 2; ++stage) {
    for (std::int32_t m = 0; m < 3; ++m) {
      EXPECT_NEAR(fitted.costs.forward.at(StageId(stage), Microbatch(m)),
                  forward[static_cast<std::size_t>(stage)][static_cast<std::size_t>(m)], kRounding);
    }
  }
}

TEST(Fit, AFewSlowStepsDoNotCount) {
  const auto schedule = lowered("1f1b");
  const Costs normal{.forward = 1, .backward = verify::PerStage(2), .latency = 0.5};
  const Costs slow{.forward = 50, .backward = verify::PerStage(80), .latency = 30};
  const Fit fitted = fit_to(schedule, {normal, slow, normal, slow, normal});
  expect_costs(fitted.costs.forward, {1, 1});
  expect_costs(*fitted.costs.backward, {2, 2});
  EXPECT_NEAR(fitted.costs.latency, 0.5, kRounding);
}

TEST(Fit, QuartilesInTheMediansPlace) {
  const auto schedule = lowered("1f1b");
  std::vector<Costs> steps;
  for (const double share : {1.0, 2.0, 3.0, 4.0, 5.0}) {
    steps.push_back({.forward = share, .backward = verify::PerStage(2 * share), .latency = share});
  }
  const auto measured = steps_in(recording_of(schedule, steps), schedule);
  for (const auto& [level, share] :
       {std::pair(&Quartiles::lower, 2.0), std::pair(&Quartiles::upper, 4.0)}) {
    const Fit fitted = fit(measured, schedule, level);
    expect_costs(fitted.costs.forward, {share, share});
    expect_costs(*fitted.costs.backward, {2 * share, 2 * share});
    EXPECT_NEAR(fitted.costs.latency, share, kRounding);
  }
}

TEST(Fit, SimulatesTheStepThatItWasTakenFrom) {
  testing_support::Random random;
  SCOPED_TRACE(random.seed_text());
  const auto some = [&](std::size_t count) {
    std::vector<double> costs;
    for (std::size_t i = 0; i < count; ++i) costs.push_back(random.between(1, 4000) / 1000.0);
    return costs;
  };
  for (int i = 0; i < 60; ++i) {
    const auto order = testing_support::random_order(random, {.split = 0.3});
    if (order.purpose == schedule::Purpose::Forward) continue;
    const auto schedule = VerifiedSchedule::from(schedule::lower_communication(order));
    const auto stages = static_cast<std::size_t>(order.stages);
    const Costs costs{.forward = some(stages), .input = some(stages), .weight = some(stages)};
    const Recording recording = recording_of(schedule, costs);
    const auto steps = steps_in(recording, schedule);
    const auto again = simulate::simulate(schedule, fit(steps, schedule).costs);
    EXPECT_NEAR(again.makespan, steps.front().makespan, 1e-6);
    for (const Drift& drift : drifts(steps.front(), again)) {
      EXPECT_NEAR(drift.start, 0, 1e-6) << drift.action;
      EXPECT_NEAR(drift.duration, 0, 1e-6) << drift.action;
    }
  }
}

// The bound that fit.h states: times within a share x of their cost give a makespan within x.
TEST(Fit, AMakespanIsAsFarOffAsTheTimesAre) {
  testing_support::Random random;
  SCOPED_TRACE(random.seed_text());
  constexpr double kShare = 0.2;
  const auto schedule = lowered("1f1b", 1, 4, 8);
  const auto noisy = [&](double cost) {
    std::vector<std::vector<double>> rows(4);
    for (auto& row : rows) {
      for (int m = 0; m < 8; ++m) {
        row.push_back(std::round(1e6 * cost * (1 + kShare * random.between(-100, 100) / 100)) /
                      1e6);
      }
    }
    return rows;
  };
  for (int i = 0; i < 20; ++i) {
    std::vector<Costs> steps;
    for (int step = 0; step < 5; ++step) {
      steps.push_back(
          {.forward = noisy(1), .backward = verify::PerStage(noisy(2)), .latency = 0.1});
    }
    const Recording recording = recording_of(schedule, steps);
    const Fit fitted = fit(steps_in(recording, schedule), schedule);
    const double simulated = simulate::simulate(schedule, fitted.costs).makespan;
    for (const MeasuredStep& step : steps_in(recording, schedule)) {
      // Both the median and the samples are within the share of the true cost.
      EXPECT_LE(step.makespan / simulated, (1 + kShare) / (1 - kShare));
      EXPECT_GE(step.makespan / simulated, (1 - kShare) / (1 + kShare));
    }
  }
}

Event event(std::int32_t rank, const std::string& name, std::int64_t start, std::int64_t ready,
            std::int64_t end) {
  return {.step = 1,
          .rank = Rank(rank),
          .what = name.empty() ? What::Finish : What::Action,
          .action = name.empty() ? schedule::Action{} : schedule::parse_action(name),
          .start_ns = start * 1'000'000,
          .ready_ns = ready * 1'000'000,
          .end_ns = end * 1'000'000};
}

// Its messages are between ranks with the same part.
TEST(MeasuredStep, OfRanksThatShareLayersIsThatOfTheFirstPart) {
  const auto schedule = lowered("1f1b");
  const Recording whole = recording_of(schedule, {{.latency = 0.125}});
  Recording shared{.schedule = whole.schedule};
  for (std::int32_t rank = 0; rank < 4; ++rank) {
    const Rank of_whole(rank / 2);
    Place place = whole.ranks[of_whole.index()];
    place.at = place.at.with(mesh::Axis::Tensor, rank % 2);
    shared.ranks.push_back(place);
    for (Event event : events_of(whole, of_whole, 1)) {
      event.rank = Rank(rank);
      if (rank % 2 == 1) event.end_ns += 1;  // The second part's are not told.
      shared.events.push_back(event);
    }
  }
  EXPECT_EQ(replicas(shared), 1);
  const MeasuredStep expected = measured_step(whole, schedule, 1, 0);
  const MeasuredStep step = measured_step(shared, schedule, 1, 0);
  EXPECT_EQ(step.makespan, expected.makespan);
  ASSERT_EQ(step.computations.size(), 2U);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (std::size_t i = 0; i < step.computations[rank].size(); ++i) {
      EXPECT_EQ(step.computations[rank][i].own, expected.computations[rank][i].own);
    }
  }
}

// A rank posts, waits until a send is over, and turns to its next computation.
TEST(MeasuredStep, AComputationHoldsItsRankUntilTheNextWithoutWhatIsWaited) {
  const auto schedule = VerifiedSchedule::from(
      testing_support::rows({"0F0,0SEND_F0,0RECV_B0,0B0", "1RECV_F0,1F0,1B0,1SEND_B0"}));
  Recording recording{.schedule = "test", .ranks = {{.at = {.pipe = 0}}, {.at = {.pipe = 1}}}};
  recording.events = {event(0, "0F0", 0, 0, 10),        event(0, "0SEND_F0", 11, 11, 13),
                      event(0, "0SEND_F0", 14, 20, 20), event(0, "0RECV_B0", 21, 21, 22),
                      event(0, "0B0", 24, 55, 60),      event(0, "", 61, 61, 64),
                      event(1, "1RECV_F0", 0, 0, 1),    event(1, "1F0", 2, 16, 26),
                      event(1, "1B0", 26, 26, 46),      event(1, "1SEND_B0", 47, 47, 50),
                      event(1, "", 50, 50, 51)};
  recording.events[2].what = What::AwaitSend;
  const MeasuredStep step = measured_step(recording, schedule, 1, 0);
  const auto& first = step.computations[0];
  EXPECT_DOUBLE_EQ(first[0].own, 10);
  EXPECT_DOUBLE_EQ(first[0].hold, 24 - 6) << "but for the 6 ms that it waits for its send";
  EXPECT_DOUBLE_EQ(first[1].wait, 55 - 24);
  EXPECT_DOUBLE_EQ(first[1].start, 55);
  EXPECT_DOUBLE_EQ(first[1].hold, 61 - 55);
  EXPECT_DOUBLE_EQ(step.computations[1][0].start, 16);
  EXPECT_DOUBLE_EQ(step.makespan, 64);
  ASSERT_EQ(step.messages.size(), 2U);
  EXPECT_DOUBLE_EQ(step.messages[0].time.value(), 16 - 13);
  EXPECT_DOUBLE_EQ(step.messages[1].time.value(), 55 - 50);
  EXPECT_FALSE(step.reductions[0]) << "one replica reduces nothing";
}

TEST(MeasuredStep, OnlyAMessageThatWasWaitedForHasATime) {
  const auto schedule = VerifiedSchedule::from(
      testing_support::rows({"0F0,0SEND_F0,0RECV_B0,0B0", "1RECV_F0,1F0,1B0,1SEND_B0"}));
  Recording recording{.schedule = "test", .ranks = {{.at = {.pipe = 0}}, {.at = {.pipe = 1}}}};
  recording.events = {event(0, "0F0", 0, 0, 1),      event(0, "0SEND_F0", 1, 1, 1),
                      event(0, "0RECV_B0", 1, 1, 1), event(0, "0B0", 1, 9, 10),
                      event(1, "1RECV_F0", 0, 0, 0), event(1, "1F0", 5, 6, 7),
                      event(1, "1B0", 7, 7, 8),      event(1, "1SEND_B0", 8, 8, 8)};
  const auto messages = measured_step(recording, schedule, 1, 0).messages;
  EXPECT_FALSE(messages[0].time) << "1F0 came to it 4 ms after it was sent";
  EXPECT_DOUBLE_EQ(messages[1].time.value(), 1);

  recording.ranks[1].clock = 1;
  const MeasuredStep apart = measured_step(recording, schedule, 1, 0);
  EXPECT_FALSE(apart.messages[1].time) << "the clocks of two hosts say nothing";
  EXPECT_FALSE(is_one_clock(recording, 0));
  EXPECT_FALSE(fit(std::vector{apart}, schedule).latency);
}

TEST(MeasuredStep, ReplicasArePooledAndWhatIsLeftToReduceIsACost) {
  const auto schedule = VerifiedSchedule::from(testing_support::rows({"0F0,0B0,0REDUCE_GRAD"}));
  Recording recording{.schedule = "test", .ranks = {{.at = {.data = 0}}, {.at = {.data = 1}}}};
  recording.events = {event(0, "0F0", 0, 0, 1),          event(0, "0B0", 1, 1, 3),
                      event(0, "0REDUCE_GRAD", 3, 3, 4), event(0, "", 4, 4, 7),
                      event(1, "0F0", 0, 0, 3),          event(1, "0B0", 3, 3, 5),
                      event(1, "0REDUCE_GRAD", 5, 5, 5), event(1, "", 5, 5, 11)};
  const Fit fitted = fit(steps_in(recording, schedule), schedule);
  expect_costs(fitted.costs.forward, {2});
  expect_costs(fitted.costs.reduce, {5});
  EXPECT_EQ(fitted.ops.back().op, Op::ReduceGradients);
  const Reduction left = measured_step(recording, schedule, 1, 1).reductions[0].value();
  EXPECT_EQ(to_string(left.action), "0REDUCE_GRAD");
  EXPECT_DOUBLE_EQ(left.start, 5);
  EXPECT_DOUBLE_EQ(left.end, 11);
}

TEST(MeasuredStep, ATimelineOfAnotherScheduleIsRefused) {
  const auto one = lowered("1f1b"), other = lowered("gpipe"), wide = lowered("1f1b", 1, 4);
  const Recording recording = recording_of(one, Costs{});
  const auto refusal = [&](const VerifiedSchedule& schedule) {
    return testing_support::message_of([&] { measured_step(recording, schedule, 1, 0); });
  };
  EXPECT_NE(refusal(other).find("rank 0 ran 0RECV_B0 as action"), std::string::npos)
      << refusal(other);
  EXPECT_NE(refusal(wide).find("2 pipeline ranks, the schedule has 4"), std::string::npos);
}

TEST(Quartiles, AreBetweenTheNeighboursWhereTheyFallBetween) {
  const auto text = [](const std::vector<double>& values) {
    const Quartiles q = quartiles(values);
    return str(q.lower, ' ', q.median, ' ', q.upper, " of ", q.samples);
  };
  EXPECT_EQ(text({3}), "3 3 3 of 1");
  EXPECT_EQ(text({4, 2}), "3 3 3 of 2");
  EXPECT_EQ(text({5, 1, 3, 2, 4}), "2 3 4 of 5");
}

}  // namespace
}  // namespace penstock::measure
