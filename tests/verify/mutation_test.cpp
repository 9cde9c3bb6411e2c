// Schedules with one change: verify and an independent checker must agree on what is left.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/simulate/simulate.h"
#include "penstock/verify/verify.h"
#include "tests/support/schedules.h"
#include "tests/verify/checker.h"

namespace penstock::verify {
namespace {

using schedule::Program;
using schedule::Schedule;
using testing_support::Random;

enum class Mutation { Delete, Duplicate, Swap, Move };
constexpr Mutation kMutations[] = {Mutation::Delete, Mutation::Duplicate, Mutation::Swap,
                                   Mutation::Move};

// What each kind of change can be objected to as.  Anything else would mislead the reader.
std::set<Code> sensible_codes(Mutation mutation) {
  std::set<Code> codes = {Code::BadOverlap, Code::NotUnsharded, Code::ShardTwice};
  switch (mutation) {
    case Mutation::Delete:
      codes.insert({Code::Missing, Code::UnpairedSend, Code::UnpairedReceive, Code::NotReceived,
                    Code::NotReduced});
      break;
    case Mutation::Duplicate:  // The copy may also stand too early.
      codes.insert({Code::Duplicate, Code::BeforeItsInput, Code::ReduceTooEarly});
      break;
    case Mutation::Swap:
      codes.insert({Code::BeforeItsInput, Code::Deadlock, Code::Misorder, Code::ReduceTooEarly});
      break;
    case Mutation::Move:  // To a place of any rank.
      codes.insert({Code::BeforeItsInput, Code::Deadlock, Code::Misorder, Code::ReduceTooEarly,
                    Code::Missing, Code::StageOnTwoRanks, Code::LocalMessage, Code::NotReceived,
                    Code::UnpairedSend, Code::UnpairedReceive});
      break;
  }
  return codes;
}

// A generated schedule of at most 5 ranks and 10 microbatches.
Schedule generated(const schedule::Generator& generator, Random& random) {
  while (true) {
    const schedule::Sizes sizes{.ranks = random.between(1, 5),
                                .stages_per_rank = random.between(1, 2),
                                .microbatches = random.between(1, 10)};
    if (generator.objection(sizes).empty()) return generator.make(sizes);
  }
}

Schedule with_reductions_or_shards(Schedule order, Random& random) {
  if (random.chance(0.3)) order = testing_support::with_shards(std::move(order));
  const auto reduction =
      random.one_of<schedule::Reduction>({schedule::Reduction::OfAll, schedule::Reduction::OfEach});
  return random.chance(0.25) ? order : schedule::add_reduce_gradients(std::move(order), reduction);
}

// Without messages, or with them in one order on both ends.
Schedule finished(Schedule order, Random& random) {
  if (random.chance(0.2)) return schedule::lower_as_torch(order);
  order = with_reductions_or_shards(std::move(order), random);
  return random.chance(0.25) ? order : schedule::add_send_recv(order, random.between(0, 5));
}

// With messages in any order.
Schedule random_schedule(Random& random) {
  const Schedule order = with_reductions_or_shards(
      testing_support::random_order(random, {.overlap = random.one_of<double>({0, 0.8}),
                                             .split = random.one_of<double>({0, 0.5})}),
      random);
  return random.chance(0.5) ? schedule::add_send_recv_at_use(order)
                            : schedule::add_send_recv(order, random.between(0, 5));
}

Schedule mutate(Schedule schedule, Mutation mutation, Random& random) {
  Program& program = schedule.programs[random.index_of(schedule.programs.size())];
  const auto at = static_cast<std::ptrdiff_t>(random.index_of(program.size()));
  const schedule::Action action = program[static_cast<std::size_t>(at)];
  const auto insert = [&](Program& into) {
    into.insert(into.begin() + random.between(0, static_cast<std::int32_t>(into.size())), action);
  };
  switch (mutation) {
    case Mutation::Delete:
      program.erase(program.begin() + at);
      break;
    case Mutation::Duplicate:
      insert(program);
      break;
    case Mutation::Swap:
      std::swap(program[static_cast<std::size_t>(at)], program[random.index_of(program.size())]);
      break;
    case Mutation::Move:
      program.erase(program.begin() + at);
      insert(schedule.programs[random.index_of(schedule.programs.size())]);
      break;
  }
  return schedule;
}

// UNSHARD and RESHARD may repeat.
bool repeats_an_action(const Schedule& schedule) {
  std::set<std::string> seen;
  for (const Program& program : schedule.programs) {
    for (const schedule::Action& action : program) {
      const bool may_repeat =
          action.op == schedule::Op::Unshard || action.op == schedule::Op::Reshard;
      if (!may_repeat && !seen.insert(str(action)).second) return true;
    }
  }
  return false;
}

// Every action of the program ran once, after what it needs.
void expect_dependencies_met(const VerifiedSchedule& verified) {
  const simulate::Simulation simulation =
      simulate::simulate(verified, {.input = 2, .weight = 0.5, .latency = 0.25});
  std::map<std::string, const simulate::Event*> ran;
  for (const simulate::Event& event : simulation.events) {
    ASSERT_TRUE(ran.emplace(str(event.action), &event).second) << event.action << " ran twice";
  }
  const Schedule& schedule = verified.schedule();
  std::size_t actions = 0;
  for (const Program& program : schedule.programs) {
    for (const schedule::Action& action : program) {
      if (!schedule::is_compute(action.op)) continue;
      ++actions;
      const simulate::Event& event = *ran.at(str(action));
      const int m = action.microbatch->value;
      const auto runs_after = [&](int stage, const char* op) {
        const auto input = ran.find(str(stage, op, m));
        if (input == ran.end()) return false;
        EXPECT_LE(input->second->end, event.start) << action << " after " << stage << op << m;
        return true;
      };
      const int s = action.stage.value;
      if (action.op == schedule::Op::Forward) {
        ASSERT_TRUE(s == 0 || runs_after(s - 1, "F"));
      } else if (action.op == schedule::Op::BackwardWeight) {
        ASSERT_TRUE(runs_after(s, "I"));
      } else {
        ASSERT_TRUE(runs_after(s, "F"));
        ASSERT_TRUE(s + 1 == schedule.stages || runs_after(s + 1, "B") || runs_after(s + 1, "I"));
      }
    }
  }
  ASSERT_EQ(ran.size(), actions);
}

class Mutants : public testing::Test {
 protected:
  // What verify says of the mutant.  The checker agrees, and if both accept it, it runs.
  std::vector<Diagnostic> judge(const Schedule& mutant, const Options& options) {
    const auto reason = reason_against(mutant, options.channels, options.communication);
    const auto diagnostics = verify(mutant, options).diagnostics;
    EXPECT_EQ(diagnostics.empty(), reason.empty())
        << to_string(options.channels) << "\nchecker: " << reason << "\n"
        << (diagnostics.empty() ? "" : to_string(diagnostics[0])) << "\n"
        << grid(mutant);
    if (diagnostics.empty()) {
      ++still_good_;
      expect_dependencies_met(VerifiedSchedule::from(mutant, options));
    }
    return diagnostics;
  }

  // REQUIRES: the mutation was the only fault.
  void check_codes(const Schedule& mutant, Mutation mutation,
                   const std::vector<Diagnostic>& diagnostics) {
    const auto duplicate = std::ranges::find(diagnostics, Code::Duplicate, &Diagnostic::code);
    EXPECT_EQ(duplicate != diagnostics.end(), repeats_an_action(mutant)) << grid(mutant);
    const std::set<Code> sensible = sensible_codes(mutation);
    for (const Diagnostic& diagnostic : diagnostics) {
      EXPECT_TRUE(sensible.contains(diagnostic.code))
          << "mutation " << static_cast<int>(mutation) << ": " << to_string(diagnostic) << "\n"
          << grid(mutant);
      ++seen_[diagnostic.code];
    }
  }

  Random random_;
  std::map<Code, int> seen_;
  int still_good_ = 0;
};

// Lowered programs run on any of these, whatever order they came from.
constexpr Channels kOurs[] = {Channels::Tagged, Channels::DirFifo, Channels::PairFifo};

TEST_F(Mutants, OfEveryGeneratorAreCaughtOrRun) {
  SCOPED_TRACE(random_.seed_text());
  for (std::size_t trial = 0; trial < 500; ++trial) {
    const auto& registry = schedule::registry();
    const Schedule good = finished(generated(registry[trial % registry.size()], random_), random_);
    const Options options{.channels = kOurs[trial / registry.size() % std::size(kOurs)]};
    ASSERT_TRUE(verify(good, options).diagnostics.empty())
        << to_string(options.channels) << "\n"
        << to_string(verify(good, options).diagnostics[0]) << "\n"
        << grid(good);
    ASSERT_EQ(reason_against(good, options.channels), "") << grid(good);
    for (const Mutation mutation : kMutations) {
      const Schedule mutant = mutate(good, mutation, random_);
      check_codes(mutant, mutation, judge(mutant, options));
    }
    if (HasFailure()) return;
  }
  // They reach every rule that a change of one action can break.
  for (const Code code : {Code::Missing, Code::Duplicate, Code::BeforeItsInput, Code::UnpairedSend,
                          Code::UnpairedReceive, Code::NotReceived, Code::Deadlock, Code::Misorder,
                          Code::StageOnTwoRanks, Code::ReduceTooEarly, Code::NotReduced,
                          Code::BadOverlap, Code::NotUnsharded, Code::ShardTwice}) {
    EXPECT_GT(seen_[code], 0) << to_string(code);
  }
  EXPECT_GT(still_good_, 50);
}

// Under any rules, also those that the program was not made for.
TEST_F(Mutants, OfRandomOrdersAreJudgedAsByAnIndependentChecker) {
  SCOPED_TRACE(random_.seed_text());
  int good_ones = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const Schedule schedule = random_schedule(random_);
    const Options options{
        .channels = random_.one_of<Channels>({std::begin(kChannels), std::end(kChannels)}),
        .communication =
            random_.one_of<Communication>({Communication::Overlapped, Communication::Blocking})};
    const auto reason = reason_against(schedule, options.channels, options.communication);
    ASSERT_EQ(verify(schedule, options).diagnostics.empty(), reason.empty())
        << to_string(options.channels) << " " << reason << "\n"
        << grid(schedule);
    good_ones += reason.empty();
    for (const Mutation mutation : kMutations) {
      judge(mutate(schedule, mutation, random_), options);
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(good_ones, 50);
  EXPECT_GT(300 - good_ones, 30);
}

// One change of a CSV text: mostly of a whole cell, so that most texts still parse.
void scramble(std::string& text, Random& random) {
  static const std::vector<std::string> kCells = {"0F0",
                                                  "1B0",
                                                  "0SEND_F0",
                                                  "1RECV_F0",
                                                  "0SEND_B1",
                                                  "2F1",
                                                  "0B0\n0F1",
                                                  "\n",
                                                  "",
                                                  "16777215F0",
                                                  "0REDUCE_GRAD",
                                                  "0REDUCE_GRAD0",
                                                  "0I0",
                                                  "0W0",
                                                  "1I0",
                                                  "0UNSHARD",
                                                  "0RESHARD",
                                                  "(0F1;0B0)OVERLAP_F_B",
                                                  "(0F1;1B0)OVERLAP_F_B"};
  static const std::vector<std::string> kBytes = {
      ",", "\r", "0", "9", "F", "B", "SEND_", "-", " ", std::string(1, '\0'), "\xFF"};
  const std::size_t at = random.index_of(text.size() + 1);
  if (random.chance(0.1)) {
    text.replace(at, random.index_of(4), random.one_of(kBytes));
    return;
  }
  const std::size_t begin = at == 0 ? 0 : text.find_last_of(",\n", at - 1) + 1;
  const std::size_t end = std::min(text.find_first_of(",\n", begin), text.size());
  text.replace(begin, end - begin, random.one_of(kCells));
}

TEST(Verify, NoTextCrashesIt) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  std::vector<std::string> seeds;
  while (seeds.size() < 8) {
    const std::string csv = to_csv(random_schedule(random));
    if (csv.size() < 150) seeds.push_back(csv);
  }
  int parsed = 0;
  int refused = 0;
  std::string text;
  for (int i = 0; i < 20'000; ++i) {
    if (i % 4 == 0) text = random.one_of(seeds);
    scramble(text, random);
    try {
      const Schedule schedule = schedule::parse_csv(text, "fuzz");
      ++parsed;
      if (i % 8 == 0) {
        ASSERT_EQ(schedule::parse_csv(to_csv(schedule), "again").programs, schedule.programs);
      }
      if (verify(schedule).diagnostics.empty()) {
        ASSERT_EQ(reason_against(schedule), "") << grid(schedule);
      }
    } catch (const ParseError& error) {  // Any other exception fails the test.
      ASSERT_TRUE(std::string(error.what()).starts_with("fuzz:")) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(parsed, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace penstock::verify
