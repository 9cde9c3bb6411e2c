// Windows of steps whose costs are known: what is told, what is looked for, and what stays.
#include "penstock/plan/adapt/adaptation.h"

#include <gtest/gtest.h>

#include "penstock/plan/adapt/objection.h"
#include "penstock/plan/adapt/proposal.h"
#include "penstock/plan/adapt/window.h"
#include "penstock/plan/adapt/words.h"
#include "penstock/plan/lower/programs.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/schedule/generators/generators.h"
#include "tests/support/recordings.h"
#include "tests/support/schedules.h"

namespace penstock::adapt {
namespace {

using simulate::Costs;
using verify::PerStage;
using verify::VerifiedSchedule;

constexpr std::int32_t kRanks = 4;
constexpr Sums kSums = Sums::InOrderOfProgram;

VerifiedSchedule program(const std::string& name, std::int32_t microbatches = 8) {
  return lower::training_program({.schedule = name, .ranks = kRanks, .microbatches = microbatches});
}

VerifiedSchedule lowered(schedule::Schedule order) {
  return VerifiedSchedule::from(schedule::lower_communication(std::move(order)));
}

// The window of steps that took those costs, as the ranks share it.
WindowCosts window_of(const VerifiedSchedule& schedule, const std::vector<Costs>& steps,
                      std::int64_t first = 1) {
  const measure::Recording recording = testing_support::recording_of(schedule, steps);
  std::vector<double> numbers, messages;
  std::vector<Window> windows;
  const auto add = [](std::vector<double>& sum, const std::vector<double>& more) {
    sum.resize(more.size());
    for (std::size_t i = 0; i < more.size(); ++i) sum[i] += more[i];
  };
  for (std::int32_t rank = 0; rank < schedule.schedule().ranks(); ++rank) {
    Window& window = windows.emplace_back(schedule, Rank(rank), 7);
    for (const std::int64_t step : measure::steps_of(recording)) {
      window.add(first + step - 1, measure::events_of(recording, Rank(rank), step));
    }
    add(numbers, to_numbers(window.costs()));
    add(messages, window.message_times());
  }
  WindowCosts costs =
      from_numbers(numbers, static_cast<std::size_t>(schedule.schedule().stages), windows.size());
  costs.first_step = windows[0].costs().first_step;
  costs.last_step = windows[0].costs().last_step;
  costs.latency = windows[0].latency_of(messages);
  return costs;
}

Costs of_stage(std::int32_t slow, double times) {
  std::vector<double> forward(kRanks, 1.0), backward(kRanks, 2.0);
  forward[static_cast<std::size_t>(slow)] *= times;
  backward[static_cast<std::size_t>(slow)] *= times;
  std::vector<double> half = backward;
  for (double& each : half) each /= 2;
  return {.forward = forward,
          .input = half,
          .weight = half,
          .backward = PerStage(backward),
          .latency = 0.125};
}

TEST(Window, HasTheCostsThatItsStepsWereSimulatedWith) {
  const auto schedule = program("1f1b");
  const WindowCosts costs = window_of(schedule, std::vector(3, of_stage(2, 3)));
  for (std::size_t s = 0; s < kRanks; ++s) {
    const double times = s == 2 ? 3 : 1;
    EXPECT_NEAR(costs.stages[s].forward->median, times, 1e-6) << s;
    EXPECT_NEAR(costs.stages[s].backward->median, 2 * times, 1e-6) << s;
    EXPECT_FALSE(costs.stages[s].input) << s;
    EXPECT_EQ(costs.stages[s].forward->samples, 24U);
  }
  ASSERT_TRUE(costs.latency);
  EXPECT_NEAR(*costs.latency, 0.125, 1e-6);
  const double makespan = simulate::simulate(schedule, of_stage(2, 3)).makespan;
  EXPECT_NEAR(costs.ranks[0]->median, makespan, 0.2);
  EXPECT_EQ(costs.first_step, 1);
  EXPECT_EQ(costs.last_step, 3);
}

TEST(Window, NumbersGoAndComeBack) {
  WindowCosts costs = window_of(program("zbv", 4), {Costs{.forward = 2}});
  EXPECT_EQ(costs.stages.size(), 8U);
  const auto numbers = to_numbers(costs);
  EXPECT_EQ(to_numbers(from_numbers(numbers, 8, kRanks)), numbers);
}

TEST(Window, TheSlowerReplicaCounts) {
  const auto schedule = program("1f1b");
  const auto fast = to_numbers(window_of(schedule, {of_stage(0, 1)}));
  const auto slow = to_numbers(window_of(schedule, {of_stage(1, 2)}));
  const WindowCosts both = from_numbers(slowest({fast, slow}), kRanks, kRanks);
  EXPECT_NEAR(both.stages[0].forward->median, 1, 1e-6);
  EXPECT_NEAR(both.stages[1].forward->median, 2, 1e-6);
  EXPECT_EQ(slowest({fast, slow}), slowest({slow, fast}));
}

TEST(CostChange, IsToldOnceAndWithTheStage) {
  const auto schedule = program("1f1b");
  Adaptation adaptation(kRanks, {.change = 0.25});
  EXPECT_FALSE(adaptation.after(window_of(schedule, {of_stage(0, 1)}, 2)).is_due);
  EXPECT_FALSE(adaptation.after(window_of(schedule, {of_stage(1, 1.2)}, 3)).told);
  EXPECT_FALSE(adaptation.after(window_of(schedule, {of_stage(1, 2)}, 4)).told);
  const WindowCosts slow = window_of(schedule, {of_stage(1, 2)}, 5);
  const Outcome outcome = adaptation.after(slow);
  ASSERT_TRUE(outcome.told);
  EXPECT_TRUE(outcome.is_due);
  EXPECT_EQ(text_of(*outcome.told, slow, schedule),
            "costs have changed: stage 1 (rank 1 of the pipe) takes 6 ms a microbatch, 3 ms "
            "before; a step takes 54.4 ms, 35.1 ms before (steps 5 to 5, before: 2 to 2)");
  EXPECT_FALSE(adaptation.after(window_of(schedule, {of_stage(1, 2)}, 6)).told);
  EXPECT_FALSE(adaptation.after(window_of(schedule, {of_stage(1, 1)}, 7)).told);
  EXPECT_TRUE(adaptation.after(window_of(schedule, {of_stage(1, 1)}, 8)).told);
}

TEST(CostChange, OfOneWindowIsNotTold) {
  const auto schedule = program("1f1b");
  Adaptation adaptation(kRanks, {.change = 0.25});
  const auto told = [&](std::int32_t slow, double times) {
    return adaptation.after(window_of(schedule, {of_stage(slow, times)})).told;
  };
  EXPECT_FALSE(told(0, 1));
  EXPECT_FALSE(told(1, 2));  // For one window,
  EXPECT_FALSE(told(1, 1));  // and over.
  EXPECT_FALSE(told(2, 2));
  const auto step_alone = told(3, 2);  // Another stage: the step is longer, the stage is new.
  ASSERT_TRUE(step_alone);
  EXPECT_TRUE(step_alone->change.stages.empty());
  EXPECT_TRUE(step_alone->change.step);
}

TEST(CostChange, TheSpreadOfSamplesIsNone) {
  const auto schedule = program("1f1b");
  const auto spread = [&](std::vector<double> times) {
    std::vector<Costs> steps;
    for (const double each : times) steps.push_back(of_stage(1, each));
    return window_of(schedule, steps);
  };
  const WindowCosts before = spread({1, 1, 1, 2, 2}), now = spread({1, 1, 2, 2, 2});
  EXPECT_GT(now.stages[1].total().median, 1.9 * before.stages[1].total().median);
  EXPECT_FALSE(change_between(before, now, 0.25).any());
}

TEST(Proposal, IsFasterAndHasNoObjection) {
  for (const char* name : {"gpipe", "1f1b"}) {
    const auto now = program(name);
    const Costs costs = of_stage(2, 2);
    const Proposal proposal = propose(now, costs, terms_of(now, kSums), {.rounds = 2});
    EXPECT_GT(proposal.gain(), 0.03) << name;
    EXPECT_GE(proposal.step, proposal.bound) << name;
    const auto next = VerifiedSchedule::from(proposal.program);
    EXPECT_EQ(objection_to_change(now, next, terms_of(now, Sums::InOrderOfProgram)), std::nullopt)
        << name;
    EXPECT_EQ(simulate::simulate(next, costs).makespan, proposal.step) << name;
    // Found again from what was found.
    EXPECT_LT(propose(next, costs, terms_of(next, kSums), {.rounds = 2}).gain(), 0.03) << name;
  }
}

TEST(Proposal, IsTheSameEachTime) {
  const auto now = program("1f1b");
  const Costs costs = of_stage(1, 1.7);
  EXPECT_EQ(propose(now, costs, terms_of(now, kSums), {.rounds = 2}).program,
            propose(now, costs, terms_of(now, kSums), {.rounds = 2}).program);
}

TEST(Proposal, IsWhatRunsWhereNothingIsFaster) {
  const auto now = program("1f1b", 1);
  const Proposal proposal = propose(now, of_stage(0, 1), terms_of(now, kSums), {.rounds = 1});
  EXPECT_GE(proposal.gain(), 0);
  const auto alone = lower::training_program({.schedule = "1f1b", .microbatches = 4});
  EXPECT_EQ(objection_to_planning(alone, kSums), "one rank of the pipe waits for nobody");
}

TEST(Objection, NamesWhatWouldChange) {
  const auto now = program("1f1b", 4);
  const auto objection = [&](schedule::Schedule order, Sums sums = Sums::InOrderOfProgram) {
    return objection_to_change(now, lowered(std::move(order)), terms_of(now, sums)).value_or("");
  };
  const auto make = [](const char* name, schedule::Sizes sizes) {
    return schedule::make_schedule(name, sizes);
  };
  EXPECT_EQ(objection(make("1f1b", {.ranks = kRanks, .microbatches = 4})), "");
  EXPECT_EQ(objection(make("1f1b", {.ranks = kRanks, .microbatches = 8})),
            "it has 4 ranks, 4 stages and 8 microbatches, the run has 4 ranks, 4 stages and 4 "
            "microbatches");
  EXPECT_EQ(objection(make("gpipe", {.ranks = kRanks, .microbatches = 4})),
            "rank 1 of the pipe would hold 4 activations at once, has room for 3");
  schedule::Schedule moved = make("1f1b", {.ranks = kRanks, .microbatches = 4});
  std::swap(moved.programs[0], moved.programs[1]);
  EXPECT_EQ(objection(moved), "it has stage 0 on rank 1, its weights are on rank 0");
}

TEST(Objection, TheOrderOfSumsCountsUnlessTheyAreInvariant) {
  const auto now = lowered(testing_support::rows({"0F0,0F1,0B0,0B1", "1F0,1F1,1B0,1B1"}));
  const auto back = lowered(testing_support::rows({"0F0,0F1,0B1,0B0", "1F0,1F1,1B1,1B0"}));
  EXPECT_EQ(objection_to_change(now, back, terms_of(now, Sums::InOrderOfProgram)),
            "stage 0 would add its gradients in the order 1 0, does it in the order 0 1");
  EXPECT_EQ(objection_to_change(now, back, terms_of(now, Sums::Invariant)), std::nullopt);
  const auto forward = lowered(testing_support::rows({"0F1,0F0,0B0,0B1", "1F1,1F0,1B0,1B1"}));
  EXPECT_EQ(objection_to_change(now, forward, terms_of(now, Sums::Invariant)),
            "stage 0 would run its forwards in the order 1 0, does it in the order 0 1");
  const auto split = lowered(testing_support::rows({"0F0,0F1,0B0,0I1,0W1", "1F0,1F1,1I0,1W0,1B1"}));
  EXPECT_EQ(objection_to_change(now, split, terms_of(now, Sums::InOrderOfProgram)), std::nullopt);
  EXPECT_EQ(objection_to_planning(now, kSums), std::nullopt);
  EXPECT_EQ(
      objection_to_planning(back, kSums),
      "stage 0 adds the gradients of microbatches in the order 1 0, which would have to stay");
  EXPECT_EQ(objection_to_planning(back, Sums::Invariant), std::nullopt);
  // A search does not keep it either, and finds what does with these sums.
  EXPECT_EQ(propose(back, {}, terms_of(back, kSums), {.rounds = 1}).gain(), 0);
  EXPECT_GT(propose(back, {}, terms_of(back, Sums::Invariant), {.rounds = 1}).gain(), 0);
  EXPECT_TRUE(objection_to_planning(forward, Sums::Invariant));
}

TEST(Adaptation, JudgesANewProgramByItsSteps) {
  const auto slow = program("1f1b"), fast = program("1f1b");
  Adaptation adaptation(kRanks, {.adapts = Adapts::Yes});
  EXPECT_TRUE(adaptation.after(window_of(slow, {of_stage(0, 1)})).is_due);
  adaptation.changed(0.1);
  const Proposal proposal =
      propose(slow, adaptation.known().costs(), terms_of(slow, kSums), {.rounds = 2});
  const auto next = VerifiedSchedule::from(proposal.program);
  EXPECT_TRUE(adaptation.known().are_halves_guessed());

  // Halves take as long as the whole, as it was taken to be.
  Outcome outcome = Adaptation(adaptation).after(window_of(next, {of_stage(0, 1)}));
  ASSERT_TRUE(outcome.judged);
  EXPECT_TRUE(outcome.judged->stays);
  EXPECT_NEAR(outcome.judged->gain(), proposal.gain(), 0.01);
  EXPECT_FALSE(outcome.is_due);

  // They take much longer.
  Costs costs = of_stage(0, 1);
  costs.input = 1.5;
  costs.weight = 1.4;
  outcome = adaptation.after(window_of(next, {costs}));
  ASSERT_TRUE(outcome.judged);
  EXPECT_FALSE(outcome.judged->stays);
  EXPECT_LT(outcome.judged->gain(), 0);
  adaptation.went_back();
  // What is known now says that the program was not faster.
  outcome = adaptation.after(window_of(slow, {of_stage(0, 1)}));
  EXPECT_FALSE(outcome.is_due);
  EXPECT_LT(propose(slow, adaptation.known().costs(), terms_of(slow, kSums), {.rounds = 2}).gain(),
            0.01);
}

TEST(Adaptation, CostsThatChangeWithTheProgramAreTold) {
  const auto schedule = program("1f1b");
  Adaptation adaptation(kRanks, {.adapts = Adapts::Yes});
  EXPECT_TRUE(adaptation.after(window_of(schedule, {of_stage(0, 1)})).is_due);
  adaptation.changed(0.1);
  const Outcome outcome = adaptation.after(window_of(schedule, {of_stage(3, 2)}));
  EXPECT_FALSE(outcome.judged);
  ASSERT_TRUE(outcome.told);
  EXPECT_TRUE(outcome.is_due);
}

}  // namespace
}  // namespace penstock::adapt
