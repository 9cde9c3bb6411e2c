// torch's lowered programs under each kind of channel, against an independent simulator.
#include <gtest/gtest.h>

#include <map>

#include "penstock/core/text.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/simulate/simulate.h"
#include "tests/support/golden.h"

namespace penstock::simulate {
namespace {

using schedule::Action;
using schedule::Op;
using schedule::Program;
using schedule::Schedule;
using verify::Channels;
using verify::Code;
using verify::Diagnostic;

// What torch's option for deferred receives makes of a lowered schedule: each RECV moves down to
// the action that needs it, but not past a SEND to the same peer if that has the higher rank.  Some
// links then carry their messages in another order than they are received.
class Deferring {
 public:
  explicit Deferring(const Schedule& schedule) : schedule_(schedule) {
    for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
      for (const Action& action : schedule.programs[rank]) rank_of_[action.stage] = rank;
    }
  }

  Schedule run() {
    Schedule result = schedule_;
    for (std::size_t rank = 0; rank < result.programs.size(); ++rank) {
      result.programs[rank] = deferred(rank);
    }
    return result;
  }

 private:
  std::size_t peer_of(const Action& message) const {
    return rank_of_.at(schedule::other_end(message).stage);
  }

  static bool needs(const Action& action, const Action& receive) {
    const bool forward = receive.op == Op::RecvForward;
    const bool uses = forward ? action.op == Op::Forward
                              : action.op == Op::Backward || action.op == Op::BackwardInput;
    return uses && action.stage == receive.stage && action.microbatch == receive.microbatch;
  }

  Program deferred(std::size_t rank) const {
    Program program;
    Program waiting;
    const auto release = [&](const auto& is_due) {
      for (const Action& receive : waiting) {
        if (is_due(receive)) program.push_back(receive);
      }
      std::erase_if(waiting, is_due);
    };
    const Program& from = schedule_.programs[rank];
    for (std::size_t i = 0; i < from.size(); ++i) {
      if (schedule::is_receive(from[i].op)) {
        waiting.push_back(from[i]);
        continue;
      }
      const bool second_of_pair = i > 0 && from[i - 1].overlaps_next;
      if (schedule::is_send(from[i].op) && peer_of(from[i]) > rank) {
        release([&](const Action& receive) { return peer_of(receive) == peer_of(from[i]); });
      } else if (!second_of_pair) {
        release([&](const Action& receive) { return needs(from[i], receive); });
      }
      if (from[i].overlaps_next) {
        release([&](const Action& receive) { return needs(from[i + 1], receive); });
      }
      program.push_back(from[i]);
    }
    return program;
  }

  const Schedule& schedule_;
  std::map<StageId, std::size_t> rank_of_;
};

// "28.25", "deadlock", "misorder", or what else is wrong.
std::string outcome(const Schedule& schedule, Channels channels) {
  try {
    const auto verified = verify::VerifiedSchedule::from(schedule, {.channels = channels});
    const Simulation result =
        simulate(verified, {.latency = 0.25, .gather = 0.5, .reduce = 0.5}, Detail::Totals);
    return shortest(result.makespan);
  } catch (const verify::Refusal& refusal) {
    return std::string(kind(refusal.diagnostics()[0].code));
  }
}

// "misorder 0SEND_F2 2RECV_B0": whether verify says that these two would meet.
void expect_misorder(const Schedule& schedule, const std::string& expected) {
  const auto words = split(expected, ' ');
  ASSERT_EQ(words.size(), 3u);
  const std::string message = str(words[2], " would receive what ", words[1], " sends");
  const auto diagnostics = verify::verify(schedule, {.channels = Channels::DirFifo}).diagnostics;
  int found = 0;
  for (const Diagnostic& diagnostic : diagnostics) {
    EXPECT_EQ(diagnostic.code, Code::Misorder);
    found += diagnostic.message == message;
  }
  EXPECT_EQ(found, 1) << message;
}

std::vector<std::int32_t> unshard_peak(const Schedule& schedule) {
  return simulate(verify::VerifiedSchedule::from(schedule), {}, Detail::Totals).unshard_peak;
}

TEST(TorchLowered, IsJudgedAndTimedAsByAnIndependentSimulator) {
  const auto lines = testing_support::golden_lines("simulated_torch_lowered.txt");
  EXPECT_EQ(lines.size(), 301u + 181u);
  std::map<std::string, int> outcomes;
  for (const std::string& line : lines) {
    SCOPED_TRACE(line);
    const auto parts = split(line, '|');
    ASSERT_EQ(parts.size(), 5u);
    const auto words = split(trim(parts[0]), ' ');
    ASSERT_EQ(words.size(), 6u);
    Schedule program = schedule::lower_as_torch(
        schedule::make_schedule(words[0], {.ranks = std::stoi(words[1]),
                                           .stages_per_rank = std::stoi(words[2]),
                                           .microbatches = std::stoi(words[3])}));
    if (words[4] == "deferred") program = Deferring(program).run();
    ASSERT_EQ(std::to_string(stable_hash(to_csv(program))), words[5]) << grid(program);
    EXPECT_EQ(join(unshard_peak(program), " "), trim(parts[1]));
    EXPECT_EQ(outcome(program, Channels::Tagged), trim(parts[2]));
    EXPECT_EQ(outcome(program, Channels::PairFifo), trim(parts[4]));
    const std::string expected(trim(parts[3]));
    const std::string got = outcome(program, Channels::DirFifo);
    EXPECT_EQ(got, split(expected, ' ')[0]);
    if (expected.starts_with("misorder")) expect_misorder(program, expected);
    ++outcomes[got];
    ++outcomes[std::string(trim(parts[4]))];
  }
  EXPECT_EQ(outcomes["misorder"], 14);
  EXPECT_EQ(outcomes["deadlock"], 84);
}

bool runs(const Schedule& schedule, Channels channels) {
  return verify::verify(schedule, {.channels = channels}).diagnostics.empty();
}

// Where torch's run under every kind of channel, they are ours; where not, ours do.
TEST(TorchLowered, DeferredReceivesDoneRightRunUnderEveryKindOfChannel) {
  int equal = 0;
  int repaired = 0;
  for (const std::string& line : testing_support::golden_lines("simulated_torch_lowered.txt")) {
    SCOPED_TRACE(line);
    const auto words = split(trim(split(line, '|').at(0)), ' ');
    if (words.at(4) != "deferred") continue;
    const Schedule lowered = schedule::lower_as_torch(
        schedule::make_schedule(words[0], {.ranks = std::stoi(words[1]),
                                           .stages_per_rank = std::stoi(words[2]),
                                           .microbatches = std::stoi(words[3])}));
    const Schedule torch = Deferring(lowered).run();
    const Schedule ours = schedule::place_receives(lowered, 0);
    for (const Channels channels : {Channels::Tagged, Channels::DirFifo, Channels::PairFifo}) {
      EXPECT_TRUE(runs(ours, channels));
    }
    EXPECT_LE(std::stod(outcome(ours, Channels::Tagged)),
              std::stod(outcome(torch, Channels::Tagged)));
    const bool is_right = runs(torch, Channels::DirFifo) && runs(torch, Channels::PairFifo);
    EXPECT_EQ(ours == torch, is_right);
    (is_right ? equal : repaired) += 1;
  }
  EXPECT_EQ(equal, 97);
  EXPECT_EQ(repaired, 84);
}

}  // namespace
}  // namespace penstock::simulate
