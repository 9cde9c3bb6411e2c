// Good schedules with one change: verify and an independent checker must agree on what is left.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/schedule/passes/passes.h"
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
      codes.insert({Code::BeforeItsInput, Code::Deadlock, Code::ReduceTooEarly});
      break;
    case Mutation::Move:  // To a place of any rank.
      codes.insert({Code::BeforeItsInput, Code::Deadlock, Code::ReduceTooEarly, Code::Missing,
                    Code::StageOnTwoRanks, Code::LocalMessage, Code::NotReceived,
                    Code::UnpairedSend, Code::UnpairedReceive});
      break;
  }
  return codes;
}

// A generated schedule of at most 5 ranks and 10 microbatches.
Schedule generated(Random& random) {
  while (true) {
    const schedule::Generator& generator = random.one_of(schedule::registry());
    const schedule::Sizes sizes{.ranks = random.between(1, 5),
                                .stages_per_rank = random.between(1, 2),
                                .microbatches = random.between(1, 10)};
    if (generator.objection(sizes).empty()) return generator.make(sizes);
  }
}

Schedule good_schedule(Random& random) {
  Schedule order = random.chance(0.5) ? testing_support::random_order(
                                            random, {.overlap = random.one_of<double>({0, 0.8}),
                                                     .split = random.one_of<double>({0, 0.5})})
                                      : generated(random);
  if (random.chance(0.3)) order = testing_support::with_shards(std::move(order));
  if (random.chance(0.3)) return order;
  const auto reduction =
      random.one_of<schedule::Reduction>({schedule::Reduction::OfAll, schedule::Reduction::OfEach});
  return schedule::add_send_recv(schedule::add_reduce_gradients(std::move(order), reduction),
                                 random.between(0, 5));
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

TEST(Verify, AgreesWithAnIndependentCheckerOnEveryMutant) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  std::map<Code, int> seen;
  int still_good = 0;
  for (int trial = 0; trial < 500; ++trial) {
    const Schedule good = good_schedule(random);
    ASSERT_TRUE(verify(good).diagnostics.empty()) << grid(good);
    ASSERT_EQ(reason_against(good), "") << grid(good);
    for (const Mutation mutation : kMutations) {
      const Schedule mutant = mutate(good, mutation, random);
      const auto diagnostics = verify(mutant).diagnostics;
      ASSERT_EQ(diagnostics.empty(), reason_against(mutant).empty())
          << "checker: " << reason_against(mutant) << "\n"
          << (diagnostics.empty() ? "" : to_string(diagnostics[0])) << "\n"
          << grid(mutant);
      still_good += diagnostics.empty();
      const auto duplicate = std::ranges::find(diagnostics, Code::Duplicate, &Diagnostic::code);
      ASSERT_EQ(duplicate != diagnostics.end(), repeats_an_action(mutant)) << grid(mutant);
      const std::set<Code> sensible = sensible_codes(mutation);
      for (const Diagnostic& diagnostic : diagnostics) {
        ASSERT_TRUE(sensible.contains(diagnostic.code))
            << "mutation " << static_cast<int>(mutation) << ": " << to_string(diagnostic) << "\n"
            << grid(mutant);
        ++seen[diagnostic.code];
      }
    }
  }
  // The mutants reach every rule that a change of one action can break.
  for (const Code code : {Code::Missing, Code::Duplicate, Code::BeforeItsInput, Code::UnpairedSend,
                          Code::UnpairedReceive, Code::NotReceived, Code::Deadlock,
                          Code::StageOnTwoRanks, Code::ReduceTooEarly, Code::NotReduced,
                          Code::BadOverlap, Code::NotUnsharded, Code::ShardTwice}) {
    EXPECT_GT(seen[code], 0) << to_string(code);
  }
  EXPECT_GT(still_good, 50);
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
    const std::string csv = to_csv(good_schedule(random));
    if (csv.size() < 150) seeds.push_back(csv);
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(900);
  int parsed = 0;
  int refused = 0;
  std::string text;
  for (int i = 0; i < 200'000 && std::chrono::steady_clock::now() < end; ++i) {
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
