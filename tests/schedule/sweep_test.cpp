// Every generator at every small size that it takes: proved, priced, and printed and parsed.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/plan/schedule/deepspeed/conversion.h"
#include "penstock/plan/schedule/json.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/simulate/simulate.h"
#include "penstock/verify/verify.h"
#include "tests/schedule/statement.h"
#include "tests/support/generated.h"
#include "tests/support/schedules.h"

namespace penstock::schedule {
namespace {

using testing_support::for_each_generated;
using testing_support::for_each_size;
using testing_support::for_each_size_of;
using verify::VerifiedSchedule;

// At one unit of time per F, I and W of a stage.
double makespan_of(const Schedule& order) {
  return simulate::simulate(VerifiedSchedule::from(order)).makespan;
}

TEST(Sweep, VerifiesWithAndWithoutMessages) {
  for_each_generated({}, [](const Generator& generator, const Sizes& sizes) {
    const Schedule order = generator.make(sizes);
    ASSERT_EQ(verify::verify(order).diagnostics.size(), 0u) << title(order);
    const Schedule lowered = lower_communication(order);
    for (const auto channels :
         {verify::Channels::Tagged, verify::Channels::DirFifo, verify::Channels::PairFifo}) {
      const auto verdict = verify::verify(lowered, {.channels = channels});
      ASSERT_TRUE(verdict.diagnostics.empty())
          << title(order) << " " << to_string(verdict.diagnostics[0]);
    }
    ASSERT_EQ(testing_support::compute_only(lowered).programs, order.programs) << title(order);
  });
}

void expect_back_from_csv(const Schedule& schedule, FileFormat format) {
  const Schedule back = parse_csv(to_csv(schedule), schedule.name, format);
  ASSERT_EQ(back, schedule) << title(schedule);
}

void expect_back_from_json(const Schedule& schedule, FileFormat format) {
  const Document back = parse_json(to_json(schedule), "back", format);
  ASSERT_EQ(back.schedule, schedule) << title(schedule);
}

TEST(Sweep, OrdersComeBackFromCsvAndJson) {
  for_each_generated({}, [](const Generator& generator, const Sizes& sizes) {
    const Schedule order = generator.make(sizes);
    expect_back_from_csv(order, FileFormat::ComputeOnly);
    expect_back_from_json(order, FileFormat::ComputeOnly);
  });
}

TEST(Sweep, TimetablesComeBackFromCsv) {
  for_each_generated({}, [](const Generator& generator, const Sizes& sizes) {
    const Timetable table = align(pack(generator.make(sizes)));
    const Timetable back = parse_timetable(to_csv(table), table.schedule.name);
    ASSERT_EQ(back, table) << title(table.schedule);
  });
}

TEST(Sweep, LoweredProgramsComeBackFromCsvAndJson) {
  for_each_generated({}, [](const Generator& generator, const Sizes& sizes) {
    const Schedule order = generator.make(sizes);
    for (const Schedule& lowered : {lower_communication(order), lower_as_torch(order)}) {
      expect_back_from_csv(lowered, FileFormat::ComputeComms);
      expect_back_from_json(lowered, FileFormat::ComputeComms);
    }
  });
}

// Whole backwards, each by itself, and a stage per rank.
bool has_deepspeed_form(const Schedule& order) {
  return order.stages == order.ranks() &&
         std::ranges::all_of(order.programs, [](const Program& program) {
           return std::ranges::all_of(program, [](const Action& action) {
             return (action.op == Op::Forward || action.op == Op::Backward) &&
                    !action.overlaps_next;
           });
         });
}

TEST(Sweep, ThoseOfDeepSpeedsFormComeBackFromIt) {
  int compared = 0;
  for_each_generated({}, [&](const Generator& generator, const Sizes& sizes) {
    const Schedule order = generator.make(sizes);
    if (!has_deepspeed_form(order)) {
      ASSERT_THROW(deepspeed::to_stepped(order), ScheduleError) << title(order);
      return;
    }
    const deepspeed::SteppedSchedule stepped = deepspeed::to_stepped(order);
    const auto back = deepspeed::parse_stepped(deepspeed::to_text(stepped), stepped.name);
    ASSERT_TRUE(back.stages == stepped.stages) << title(order);
    ASSERT_EQ(back.microbatches, stepped.microbatches) << title(order);
    const Schedule again = deepspeed::to_schedule(back);
    ASSERT_EQ(testing_support::compute_only(again).programs, order.programs) << title(order);
    ++compared;
  });
  EXPECT_GE(compared, 4 * 8 * 24 + 137) << "interleaved_1f1b takes 137 of the sizes";
}

TEST(Sweep, PlacesStagesInALoopOrToAndFro) {
  for_each_generated({.microbatches_max = 16}, [](const Generator& generator, const Sizes& sizes) {
    const auto verified = VerifiedSchedule::from(generator.make(sizes));
    const bool folds =
        generator.constraints.starts_with("v = 2") || generator.constraints == "v even";
    for (std::int32_t s = 0; s < verified.schedule().stages; ++s) {
      const bool back = folds && s / sizes.ranks % 2 != 0;
      const std::int32_t rank = back ? sizes.ranks - 1 - s % sizes.ranks : s % sizes.ranks;
      ASSERT_EQ(verified.rank_of(StageId(s)), Rank(rank));
    }
  });
}

TEST(Sweep, TakesTheSizesThatItsRowStates) {
  for (const Generator& generator : registry()) {
    for_each_size({.stages_per_rank_max = 6}, [&](const Sizes& sizes) {
      ASSERT_EQ(generator.objection(sizes).empty(), holds(generator.constraints, symbols_of(sizes)))
          << generator.name << ": " << generator.constraints << ", but p=" << sizes.ranks
          << " v=" << sizes.stages_per_rank << " m=" << sizes.microbatches;
    });
  }
}

// Whether every stage runs its B or W in the order of the microbatches.
bool runs_backwards_in_order(const Schedule& order) {
  std::vector<std::int32_t> next(static_cast<std::size_t>(order.stages));
  for (const Program& program : order.programs) {
    for (const Action& action : program) {
      if (action.op != Op::Backward && action.op != Op::BackwardWeight) continue;
      if (action.microbatch->value != next[action.stage.index()]++) return false;
    }
  }
  return true;
}

TEST(Sweep, RunsBackwardsInTheOrderThatItsRowStates) {
  for (const Generator& generator : registry()) {
    bool in_order = true;
    for_each_size_of(generator, {}, [&](const Generator&, const Sizes& sizes) {
      in_order = in_order && runs_backwards_in_order(generator.make(sizes));
    });
    EXPECT_EQ(in_order, generator.backwards == BackwardOrder::Rising)
        << generator.name << " runs them in "
        << (in_order ? "the order of the microbatches"
                     : "another: .backwards = BackwardOrder::Other");
  }
}

TEST(Sweep, HasPairsWhereItsRowStatesThem) {
  for (const Generator& generator : registry()) {
    bool has_pairs = false;
    for_each_size_of(generator, {}, [&](const Generator&, const Sizes& sizes) {
      for (const Program& program : generator.make(sizes).programs) {
        has_pairs = has_pairs || std::ranges::any_of(program, &Action::overlaps_next);
      }
    });
    EXPECT_EQ(has_pairs, generator.has_pairs) << generator.name;
  }
}

// A stage's F, I and W take a unit of time each.
std::int32_t work_of(const Schedule& order) {
  const std::int32_t units = order.purpose == Purpose::Train ? 3 : 1;
  return units * order.microbatches * order.stages / order.ranks();
}

// Counts the sizes for which the row states something.
void expect_bubble(const Generator& generator, const Sizes& sizes, int& compared) {
  const Schedule order = generator.make(sizes);
  const auto result = simulate::simulate(VerifiedSchedule::from(order));
  const std::int32_t work = work_of(order);
  for (const double busy : result.busy) ASSERT_EQ(busy, work) << title(order);
  const Statement stated(generator.bubble);
  const Symbols symbols = symbols_of(sizes);
  if (!holds(stated.where, symbols)) return;
  ++compared;
  const double bubble = result.makespan - work;
  const double value =
      value_of(stated.expression, symbols) * (stated.of_the_makespan ? result.makespan : 1);
  if (stated.at_most) {
    ASSERT_LE(bubble, value + 1e-9) << title(order) << ": " << generator.bubble;
  } else {
    ASSERT_EQ(bubble, value) << title(order) << ": " << generator.bubble;
  }
}

TEST(Sweep, BubbleIsWhatItsRowStates) {
  for (const Generator& generator : registry()) {
    int compared = 0;
    for_each_size_of(generator, {}, [&](const Generator&, const Sizes& sizes) {
      expect_bubble(generator, sizes, compared);
    });
    EXPECT_GT(compared, 0) << generator.name << ": of no size is it true that "
                           << Statement(generator.bubble).where;
  }
}

TEST(Sweep, BubbleOfHanayoIsWhatItsRowStatesUpToThreeWaves) {
  int compared = 0;
  for_each_size_of(find_generator("hanayo"), {.stages_per_rank_max = 8},
                   [&](const Generator& generator, const Sizes& sizes) {
                     expect_bubble(generator, sizes, compared);
                   });
  EXPECT_EQ(compared, 8 * 3) << "with as many microbatches as ranks";
}

TEST(Sweep, HanayoIsNoSlowerThan1F1B) {
  for_each_size_of(
      find_generator("hanayo"), {}, [](const Generator& generator, const Sizes& sizes) {
        const Schedule order = generator.make(sizes);
        const std::int32_t of_1f1b = sizes.microbatches + sizes.ranks - 1;
        ASSERT_LE(makespan_of(order), 3 * sizes.stages_per_rank * of_1f1b) << title(order);
      });
}

TEST(Sweep, FittedZbvIsNoSlowerAndHoldsNoMore) {
  int faster = 0;
  for (std::int32_t ranks = 1; ranks <= 12; ++ranks) {
    for (std::int32_t m = 1; m < 2 * ranks - 1; ++m) {
      Sizes sizes{.ranks = ranks, .stages_per_rank = 2, .microbatches = m};
      const auto published = VerifiedSchedule::from(make_schedule("zbv", sizes));
      sizes.rule = Rule::Fitted;
      const auto fitted = VerifiedSchedule::from(make_schedule("zbv", sizes));
      const double before = simulate::simulate(published).makespan;
      const double after = simulate::simulate(fitted).makespan;
      ASSERT_LE(after, before) << title(fitted.schedule());
      ASSERT_LE(std::ranges::max(fitted.facts().peak_activations),
                std::ranges::max(published.facts().peak_activations))
          << title(fitted.schedule());
      if (before > 6 * m + ranks - 1) {
        ASSERT_LT(after, before) << title(fitted.schedule());
        ++faster;
      }
    }
  }
  EXPECT_GT(faster, 80);
}

TEST(Sweep, FittedZbvIsThePublishedOneWhereItsRuleApplies) {
  for (std::int32_t ranks = 1; ranks <= 8; ++ranks) {
    Sizes sizes{.ranks = ranks, .stages_per_rank = 2, .microbatches = 2 * ranks - 1};
    const Schedule published = make_schedule("zbv", sizes);
    sizes.rule = Rule::Fitted;
    EXPECT_EQ(make_schedule("zbv", sizes).programs, published.programs);
  }
}

void expect_peaks(const Generator& generator, const Sizes& sizes) {
  const Schedule order = generator.make(sizes);
  const auto verdict = verify::verify(order);
  ASSERT_TRUE(verdict.diagnostics.empty()) << title(order);
  const Statement stated(generator.peak);
  for (std::int32_t rank = 0; rank < sizes.ranks; ++rank) {
    const Symbols symbols = symbols_of(sizes, rank);
    const std::int32_t peak = verdict.facts.peak_activations[static_cast<std::size_t>(rank)];
    if (!holds(stated.where, symbols)) return;
    if (stated.at_most) {
      ASSERT_LE(peak, value_of(stated.expression, symbols))
          << title(order) << " rank " << rank << ": " << generator.peak;
    } else {
      ASSERT_EQ(peak, value_of(stated.expression, symbols))
          << title(order) << " rank " << rank << ": " << generator.peak;
    }
  }
}

TEST(Sweep, PeakActivationsAreWhatItsRowStates) { for_each_generated({}, expect_peaks); }

TEST(Sweep, GroupsOfEverySizeVerifyAndKeepToTheirPeak) {
  int compared = 0;
  for (const char* name : {"interleaved_1f1b", "interleaved_zero_bubble"}) {
    const Generator& generator = find_generator(name);
    for (std::int32_t group = 1; group <= 12; ++group) {
      for (std::int32_t ranks = 1; ranks <= 5; ++ranks) {
        for (std::int32_t m = 1; m <= 16; ++m) {
          const Sizes sizes{
              .ranks = ranks, .stages_per_rank = 3, .microbatches = m, .microbatch_group = group};
          if (!generator.objection(sizes).empty()) continue;
          expect_peaks(generator, sizes);
          ++compared;
        }
      }
    }
  }
  EXPECT_GT(compared, 300);
}

}  // namespace
}  // namespace penstock::schedule
