#include "penstock/schedule/generators/generators.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/schedule/passes/passes.h"
#include "penstock/simulate/simulate.h"
#include "penstock/verify/verify.h"
#include "tests/support/golden.h"
#include "tests/support/schedules.h"

namespace penstock::schedule {
namespace {

using verify::VerifiedSchedule;

template <class Check>
void for_each_size(const Check& check) {
  for (const Generator& generator : registry()) {
    for (std::int32_t ranks = 1; ranks <= 8; ++ranks) {
      for (std::int32_t microbatches = 1; microbatches <= 24; ++microbatches) {
        const Schedule order = generator.make({.ranks = ranks, .microbatches = microbatches});
        SCOPED_TRACE(title(order));
        check(order);
      }
    }
  }
}

TEST(GPipe, TwoRanksThreeMicrobatches) {
  EXPECT_EQ(grid(gpipe({.ranks = 2, .microbatches = 3})),
            "rank 0: 0F0 0F1 0F2 0B0 0B1 0B2\n"
            "rank 1: 1F0 1F1 1F2 1B0 1B1 1B2\n");
}

TEST(OneFOneB, ThreeRanksFourMicrobatches) {
  EXPECT_EQ(grid(one_f_one_b({.ranks = 3, .microbatches = 4})),
            "rank 0: 0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3\n"
            "rank 1: 1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3\n"
            "rank 2: 2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3\n");
}

TEST(OneFOneB, WarmupDepthIsStagesMinusRank) {
  for (std::int32_t ranks = 1; ranks <= 8; ++ranks) {
    for (std::int32_t microbatches = 1; microbatches <= 24; ++microbatches) {
      const Schedule order = one_f_one_b({.ranks = ranks, .microbatches = microbatches});
      for (std::int32_t r = 0; r < ranks; ++r) {
        const Program& program = order.programs[static_cast<std::size_t>(r)];
        const auto first_backward = std::ranges::find(program, Op::Backward, &Action::op);
        EXPECT_EQ(first_backward - program.begin(), std::min(microbatches, ranks - r))
            << title(order) << " rank " << r;
      }
    }
  }
}

TEST(ForwardOnly, StagesGoRoundTheRanks) {
  const Schedule order = forward_only({.ranks = 2, .stages_per_rank = 2, .microbatches = 2});
  EXPECT_EQ(grid(order),
            "rank 0: 0F0 0F1 2F0 2F1\n"
            "rank 1: 1F0 1F1 3F0 3F1\n");
  EXPECT_EQ(order.purpose, Purpose::Forward);
}

TEST(ForwardOnly, EverySizeVerifiesAndKeepsNothing) {
  for (std::int32_t ranks = 1; ranks <= 6; ++ranks) {
    for (std::int32_t per_rank = 1; per_rank <= 3; ++per_rank) {
      for (std::int32_t microbatches = 1; microbatches <= 8; ++microbatches) {
        const Schedule order = forward_only(
            {.ranks = ranks, .stages_per_rank = per_rank, .microbatches = microbatches});
        const auto verified = VerifiedSchedule::from(lower_communication(order));
        EXPECT_EQ(verified.facts().peak_activations,
                  std::vector<std::int32_t>(static_cast<std::size_t>(ranks), 0));
      }
    }
  }
}

TEST(Generators, VerifyCleanAtEverySizeWithAndWithoutMessages) {
  for_each_size([](const Schedule& order) {
    EXPECT_EQ(verify::verify(order).diagnostics.size(), 0u);
    const Schedule lowered = lower_communication(order);
    EXPECT_EQ(verify::verify(lowered).diagnostics.size(), 0u);
    EXPECT_EQ(testing_support::compute_only(lowered).programs, order.programs);
  });
}

TEST(Generators, MakespanIsTheClosedForm) {
  for_each_size([](const Schedule& order) {
    const simulate::Costs costs{.forward = 1, .backward = 2};
    const double ideal = order.microbatches + order.ranks() - 1;
    for (const Schedule& schedule : {order, lower_communication(order)}) {
      const auto result = simulate::simulate(VerifiedSchedule::from(schedule), costs);
      EXPECT_EQ(result.makespan, ideal * 3);
      for (const double busy : result.busy) EXPECT_EQ(busy, order.microbatches * 3.0);
    }
  });
}

TEST(Generators, PeakActivationsAreTheClosedForm) {
  for_each_size([](const Schedule& order) {
    const auto facts = VerifiedSchedule::from(lower_communication(order)).facts();
    for (std::int32_t r = 0; r < order.ranks(); ++r) {
      const std::int32_t expected = order.name == "gpipe"
                                        ? order.microbatches
                                        : std::min(order.microbatches, order.ranks() - r);
      EXPECT_EQ(facts.peak_activations[static_cast<std::size_t>(r)], expected) << "rank " << r;
    }
  });
}

TEST(Generators, StageLivesOnTheRankOfItsNumber) {
  for_each_size([](const Schedule& order) {
    const auto verified = VerifiedSchedule::from(order);
    for (std::int32_t s = 0; s < order.stages; ++s)
      EXPECT_EQ(verified.rank_of(StageId(s)), Rank(s));
  });
}

// "(0SEND_F1;0RECV_B0)BATCH" is both; WAITs and messages are torch's own.
Program compute_order_of_torch(const std::string& row) {
  Program program;
  for (const std::string& field : split(row, ',')) {
    if (field.starts_with("WAIT") || field.starts_with("(")) continue;
    const Action action = parse_action(field);
    if (is_compute(action.op)) program.push_back(action);
  }
  return program;
}

TEST(Generators, ComputeInTheOrderThatTorchRuns) {
  const auto lines = testing_support::golden_lines("torch_programs.txt");
  std::set<std::string> compared;
  for (std::size_t i = 0; i < lines.size();) {
    SCOPED_TRACE(lines[i]);
    const auto words = split(lines[i++], ' ');
    ASSERT_EQ(words.size(), 3u);
    const Schedule ours = make_schedule(
        words[0], {.ranks = std::stoi(words[1]), .microbatches = std::stoi(words[2])});
    for (const Program& program : ours.programs) {
      ASSERT_LT(i, lines.size());
      EXPECT_EQ(join(program, " "), join(compute_order_of_torch(lines[i++]), " "));
    }
    compared.insert(words[0] + " " + words[1]);
  }
  EXPECT_EQ(compared,
            (std::set<std::string>{"1f1b 1", "1f1b 2", "1f1b 4", "gpipe 1", "gpipe 2", "gpipe 4"}));
}

std::string refusal(std::string_view name, const Sizes& sizes) {
  try {
    make_schedule(name, sizes);
  } catch (const ScheduleError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Registry, FindsNamesAndAliasesInAnyCase) {
  for (const char* name : {"1f1b", "1F1B", "Schedule1F1B", "schedule1f1b", "one_f_one_b"}) {
    EXPECT_EQ(make_schedule(name, {}).name, "1f1b") << name;
  }
  for (const char* name : {"gpipe", "GPipe", "ScheduleGPipe"}) {
    EXPECT_EQ(make_schedule(name, {}).name, "gpipe") << name;
  }
}

TEST(Registry, NamesAreDifferentFromEachOther) {
  std::set<std::string> names;
  for (const Generator& generator : registry()) {
    EXPECT_TRUE(names.insert(lower_case(generator.name)).second) << generator.name;
    for (const auto alias : generator.aliases) {
      EXPECT_TRUE(names.insert(lower_case(alias)).second) << alias;
    }
    EXPECT_EQ(generator.make({}).name, generator.name);
    EXPECT_FALSE(generator.summary.empty());
  }
}

TEST(Registry, RefusalsNameWhatWouldWork) {
  EXPECT_EQ(refusal("gpip", {}),
            "unknown schedule \"gpip\"; did you mean \"gpipe\"?\n"
            "  note: known schedules: gpipe, 1f1b");
  EXPECT_EQ(refusal("zigzag", {}),
            "unknown schedule \"zigzag\"\n  note: known schedules: gpipe, 1f1b");
  EXPECT_EQ(refusal("gpipe", {.ranks = 0}), "schedule gpipe: ranks is 0, must be 1 to 1048576");
  EXPECT_EQ(refusal("1F1B", {.microbatches = -3}),
            "schedule 1f1b: microbatches is -3, must be 1 to 1048576");
  EXPECT_EQ(refusal("1f1b", {.stages_per_rank = 2}),
            "schedule 1f1b: stages_per_rank is 2, must be 1: it has one stage per rank");
  EXPECT_EQ(refusal("1f1b", {.ranks = 1 << 14, .microbatches = 1 << 20}),
            "schedule 1f1b: 16384 ranks x 1048576 microbatches are 17179869184 forwards, must be "
            "at most 67108864");
}

}  // namespace
}  // namespace penstock::schedule
