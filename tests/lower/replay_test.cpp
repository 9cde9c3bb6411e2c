// Plans of all ranks, run against each other: messages meet, buffers are free when they are filled,
// and waiting for a send never waits.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "penstock/core/text.h"
#include "penstock/lower/plan.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/plan/search/reroute.h"
#include "penstock/schedule/generators/generators.h"
#include "tests/support/generated.h"
#include "tests/support/schedules.h"

namespace penstock::lower {
namespace {

using schedule::Op;
using schedule::Purpose;
using schedule::Schedule;
using testing_support::Random;
using verify::VerifiedSchedule;

std::vector<Plan> plans_of(const Schedule& schedule) {
  const auto verified = VerifiedSchedule::from(schedule);
  partition::Partition partition;
  for (std::int32_t s = 0; s <= schedule.stages; ++s) partition.bounds.push_back(s);
  const auto mesh = mesh::make_mesh(schedule.ranks(), {.pipe = schedule.ranks(), .data = 1});
  std::vector<Plan> plans;
  for (std::int32_t r = 0; r < schedule.ranks(); ++r) {
    plans.push_back(lower(verified, partition, mesh, Rank(r)));
  }
  return plans;
}

// Of several replicas, one or two of whose ranks are lost.
Schedule rerouted(Random& random) {
  const char* const name = random.one_of<const char*>({"1f1b", "gpipe", "interleaved", "zbv"});
  const std::int32_t ranks = random.between(2, 4), replicas = random.between(3, 4);
  const auto one = VerifiedSchedule::from(schedule::make_schedule(
      name, {.ranks = ranks,
             .stages_per_rank = schedule::find_generator(name).stages_per_rank,
             .microbatches = ranks * random.between(1, 2)}));
  std::vector<Rank> lost = {Rank(random.between(0, ranks * replicas - 1))};
  const Rank other(random.between(0, ranks * replicas - 1));
  if (other != lost[0]) lost.push_back(other);
  const auto left = search::reroute({.schedule = one,
                                     .replicas = replicas,
                                     .lost = lost,
                                     .costs = {.latency = random.one_of<double>({0, 0.3})}});
  return schedule::add_send_recv(schedule::add_reduce_gradients(left.schedule.schedule()),
                                 random.between(0, 5));
}

// Every generator at every size; then random orders, which put any stages on any ranks; then
// programs of several replicas.
template <class Check>
void for_each_schedule(const Check& check) {
  const auto check_size = [&](const schedule::Generator& generator, const schedule::Sizes& sizes) {
    if (testing::Test::HasFatalFailure()) return;
    check(schedule::lower_communication(generator.make(sizes)));
  };
  testing_support::for_each_generated({.stages_per_rank_max = 1, .microbatches_max = 16},
                                      check_size);
  testing_support::for_each_generated(
      {.ranks_max = 4, .stages_per_rank_max = 3, .microbatches_max = 9}, check_size);
  if (testing::Test::HasFatalFailure()) return;
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int trial = 0; trial < 200; ++trial) {
    const Schedule order = testing_support::random_order(
        random, {.overlap = trial % 2 == 0 ? 0 : 0.8, .split = trial % 3 == 0 ? 0 : 0.6});
    check(schedule::add_send_recv(schedule::add_reduce_gradients(order), random.between(0, 5)));
    if (testing::Test::HasFatalFailure()) return;
  }
  static const std::vector<Schedule> kRerouted = [&random] {
    std::vector<Schedule> schedules;
    for (int trial = 0; trial < 60; ++trial) schedules.push_back(rerouted(random));
    return schedules;
  }();
  for (const Schedule& schedule : kRerouted) {
    check(schedule);
    if (testing::Test::HasFatalFailure()) return;
  }
}

void keeps_the_program_of_every_rank(const Schedule& schedule, const std::vector<Plan>& plans) {
  for (std::size_t r = 0; r < plans.size(); ++r) {
    schedule::Program program;
    for (const Instruction& i : plans[r].instructions) {
      if (i.kind != Kind::AwaitSend) program.push_back(i.action);
    }
    ASSERT_EQ(join(program, " "), join(schedule.programs[r], " "))
        << title(schedule) << " rank " << r;
  }
}

void every_send_has_its_receive_with_the_same_tag_on_the_peer(const Schedule& schedule,
                                                              const std::vector<Plan>& plans) {
  // From, to, tag.
  std::set<std::tuple<Rank, Rank, std::int32_t>> sends;
  std::set<std::tuple<Rank, Rank, std::int32_t>> receives;
  std::set<std::int32_t> tags;
  std::size_t count = 0;
  for (const Plan& plan : plans) {
    for (const Instruction& i : plan.instructions) {
      if (i.kind == Kind::Send) {
        sends.insert({plan.rank, i.peer, i.tag});
        tags.insert(i.tag);
        ++count;
      } else if (i.kind == Kind::Receive) {
        receives.insert({i.peer, plan.rank, i.tag});
      }
    }
  }
  ASSERT_EQ(sends, receives) << grid(schedule);
  ASSERT_EQ(tags.size(), count) << "a tag names two messages\n" << grid(schedule);
}

void last_backward_is_marked_once_per_stage(const Schedule&, const std::vector<Plan>& plans) {
  for (const Plan& plan : plans) {
    std::map<StageId, bool> last;  // Of the latest backward seen.
    for (const Instruction& i : plan.instructions) {
      if (i.kind != Kind::Backward && i.kind != Kind::BackwardWeight) {
        ASSERT_FALSE(i.last);
        continue;
      }
      ASSERT_FALSE(last[i.action.stage]) << "a backward after the last one";
      last[i.action.stage] = i.last;
    }
    for (const auto& [stage, is_last] : last) ASSERT_TRUE(is_last) << "stage " << stage;
  }
}

// Slots of one kind on one rank: each is filled, then emptied, then filled again.
class Buffers {
 public:
  void fill(std::int32_t slot, const std::string& content) {
    ASSERT_TRUE(content_.emplace(slot, content).second)
        << content << " into slot " << slot << ", which holds " << content_.at(slot);
    most_ = std::max(most_, static_cast<std::int32_t>(content_.size()));
    slots_.insert(slot);
  }
  // What slot holds; "" when it is empty.
  std::string at(std::int32_t slot) const {
    const auto found = content_.find(slot);
    return found == content_.end() ? "" : found->second;
  }
  void empty(std::int32_t slot) { content_.erase(slot); }
  bool all_empty() const { return content_.empty(); }
  // The number of slots ever used is the most in use at once: none is wasted.
  std::int32_t most() const { return most_; }
  std::int32_t used() const { return static_cast<std::int32_t>(slots_.size()); }

 private:
  std::map<std::int32_t, std::string> content_;
  std::set<std::int32_t> slots_;
  std::int32_t most_ = 0;
};

void buffers_are_free_when_they_are_filled_and_none_is_wasted(const Schedule&,
                                                              const std::vector<Plan>& plans) {
  for (const Plan& plan : plans) {
    std::vector<Buffers> forward(plan.chunks.size());
    std::vector<Buffers> backward(plan.chunks.size());
    // By "1F0": held until its B or W.
    std::map<std::string, std::int32_t> activation_slot, gradient_slot;
    for (const Instruction& i : plan.instructions) {
      const auto chunk = static_cast<std::size_t>(i.chunk);
      ASSERT_EQ(plan.chunks[chunk], i.action.stage);
      const std::string text = str(i.action);
      if (i.kind == Kind::Receive) {
        (i.action.op == Op::RecvForward ? forward : backward)[chunk].fill(i.slot, text);
      } else if (i.kind == Kind::Forward && i.from == Route::Message) {
        ASSERT_EQ(forward[chunk].at(i.slot), str(i.action.stage, "RECV_F", *i.action.microbatch));
        activation_slot[text] = i.slot;
        if (plan.purpose == Purpose::Forward) forward[chunk].empty(i.slot);
      } else if (i.kind == Kind::Backward || i.kind == Kind::BackwardInput) {
        if (i.from == Route::Message) {
          ASSERT_EQ(backward[chunk].at(i.slot),
                    str(i.action.stage, "RECV_B", *i.action.microbatch));
          gradient_slot[str(i.action.stage, "F", *i.action.microbatch)] = i.slot;
        }
      }
      if (i.kind == Kind::Backward || i.kind == Kind::BackwardWeight) {
        const std::string microbatch = str(i.action.stage, "F", *i.action.microbatch);
        const auto held = activation_slot.find(microbatch);
        if (held != activation_slot.end()) forward[chunk].empty(held->second);
        const auto came = gradient_slot.find(microbatch);
        if (came != gradient_slot.end()) backward[chunk].empty(came->second);
      }
      if (testing::Test::HasFatalFailure()) return;
    }
    for (std::size_t chunk = 0; chunk < plan.chunks.size(); ++chunk) {
      ASSERT_TRUE(forward[chunk].all_empty() && backward[chunk].all_empty());
      ASSERT_EQ(plan.forward_slots[chunk], forward[chunk].most());
      ASSERT_EQ(plan.backward_slots[chunk], backward[chunk].most());
      ASSERT_EQ(forward[chunk].used(), forward[chunk].most());
      ASSERT_EQ(backward[chunk].used(), backward[chunk].most());
    }
  }
}

void send_slots_are_held_from_send_to_its_await(const Schedule&, const std::vector<Plan>& plans) {
  for (const Plan& plan : plans) {
    Buffers under_way;
    for (const Instruction& i : plan.instructions) {
      if (i.kind == Kind::Send) under_way.fill(i.slot, str(i.action, i.peer, i.tag));
      if (i.kind != Kind::AwaitSend) continue;
      ASSERT_EQ(under_way.at(i.slot), str(i.action, i.peer, i.tag)) << "awaits another send";
      under_way.empty(i.slot);
      if (testing::Test::HasFatalFailure()) return;
    }
    ASSERT_EQ(plan.send_slots, under_way.most());
    ASSERT_EQ(under_way.used(), under_way.most());
  }
}

// What passes a gradient on.
bool is_backward(Kind kind) { return kind == Kind::Backward || kind == Kind::BackwardInput; }

// Runs the plans of all ranks; `pick` chooses whose turn it is among those that can move.  Says
// what went wrong, or "".
template <class Pick>
std::string run(const std::vector<Plan>& plans, const Pick& pick) {
  std::vector<std::size_t> next(plans.size(), 0);
  std::set<std::int32_t> sent;      // Tags.
  std::set<std::int32_t> received;  // Posted.
  std::set<std::string> done;       // "1F0", over all ranks.
  const auto arrival_tag = [](const Instruction& i) {
    const Op receive = i.kind == Kind::Forward ? Op::RecvForward : Op::RecvBackward;
    return message_tag({.stage = i.action.stage, .op = receive, .microbatch = i.action.microbatch},
                       kValuePart);
  };
  const auto can_run = [&](const Instruction& i) {
    const bool computes = i.kind == Kind::Forward || is_backward(i.kind);
    if (!computes) return true;
    if (i.from == Route::Message) {
      return sent.contains(arrival_tag(i)) && received.contains(arrival_tag(i));
    }
    const bool forward = i.kind == Kind::Forward;
    return i.from == Route::Batch || done.contains(str(i.action.stage.value + (forward ? -1 : 1),
                                                       forward ? "F" : "B", *i.action.microbatch));
  };
  while (true) {
    std::vector<std::size_t> movable;
    for (std::size_t r = 0; r < plans.size(); ++r) {
      if (next[r] < plans[r].instructions.size() && can_run(plans[r].instructions[next[r]])) {
        movable.push_back(r);
      }
    }
    if (movable.empty()) break;
    const std::size_t rank = pick(movable);
    const Instruction& i = plans[rank].instructions[next[rank]++];
    if (i.kind == Kind::Send) sent.insert(i.tag);
    if (i.kind == Kind::Receive) received.insert(i.tag);
    if (i.kind == Kind::Forward) done.insert(str(i.action));
    if (is_backward(i.kind)) done.insert(str(i.action.stage, "B", *i.action.microbatch));
    if (i.kind == Kind::AwaitSend) {
      const auto partner = schedule::other_end(i.action);
      const std::string use =
          str(partner.stage, i.action.op == Op::SendForward ? "F" : "B", *partner.microbatch);
      if (!done.contains(use)) return str("rank ", rank, " waits for ", i.action);
    }
  }
  for (std::size_t r = 0; r < plans.size(); ++r) {
    if (next[r] < plans[r].instructions.size()) {
      return str("rank ", r, " is stuck at ", to_string(plans[r].instructions[next[r]]));
    }
  }
  return "";
}

void awaits_only_sends_that_are_over_whoever_is_fast(const Schedule& schedule,
                                                     const std::vector<Plan>& plans,
                                                     Random& random) {
  using Ranks = std::vector<std::size_t>;
  ASSERT_EQ(run(plans, [](const Ranks& ranks) { return ranks.front(); }), "") << grid(schedule);
  ASSERT_EQ(run(plans, [](const Ranks& ranks) { return ranks.back(); }), "") << grid(schedule);
  if (schedule.microbatches <= 8) {
    ASSERT_EQ(run(plans, [&](const Ranks& ranks) { return random.one_of(ranks); }), "")
        << grid(schedule);
  }
}

using Check = std::function<void(const Schedule&, const std::vector<Plan>&)>;

// Lowers each schedule once for all its laws.
TEST(Lowering, KeepsItsLawsForEverySchedule) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  const std::vector<std::pair<const char*, Check>> laws = {
      {"KeepsTheProgramOfEveryRank", keeps_the_program_of_every_rank},
      {"EverySendHasItsReceiveWithTheSameTagOnThePeer",
       every_send_has_its_receive_with_the_same_tag_on_the_peer},
      {"LastBackwardIsMarkedOncePerStage", last_backward_is_marked_once_per_stage},
      {"BuffersAreFreeWhenTheyAreFilledAndNoneIsWasted",
       buffers_are_free_when_they_are_filled_and_none_is_wasted},
      {"SendSlotsAreHeldFromSendToItsAwait", send_slots_are_held_from_send_to_its_await},
      {"AwaitsOnlySendsThatAreOverWhoeverIsFast",
       [&](const auto&... all) {
         awaits_only_sends_that_are_over_whoever_is_fast(all..., random);
       }},
  };
  for_each_schedule([&](const Schedule& schedule) {
    const std::vector<Plan> plans = plans_of(schedule);
    for (const auto& [name, check] : laws) {
      check(schedule, plans);
      if (!HasFatalFailure()) continue;
      ADD_FAILURE() << name << " does not hold for " << title(schedule) << "\n" << grid(schedule);
      return;
    }
  });
}

std::ptrdiff_t count(const Plan& plan, Kind kind) {
  return std::ranges::count(plan.instructions, kind, &Instruction::kind);
}

TEST(Lowering, GradientsThatComeBackProveEverySendOfTheFirstRank) {
  for (std::int32_t ranks = 2; ranks <= 5; ++ranks) {
    for (const std::string_view name : {"gpipe", "1f1b"}) {
      const auto plans = plans_of(schedule::lower_communication(
          schedule::make_schedule(name, {.ranks = ranks, .microbatches = 12})));
      EXPECT_EQ(count(plans[0], Kind::Send), 12);
      // On two ranks 1F1B has the answer to the last send only with its last action.
      const bool last_is_open = name == "1f1b" && ranks == 2;
      EXPECT_EQ(count(plans[0], Kind::AwaitSend), last_is_open ? 11 : 12);
    }
  }
}

TEST(Lowering, NothingProvesTheSendsOfAForwardOnlyPipeline) {
  const auto plans = plans_of(schedule::lower_communication(
      schedule::make_schedule("forward_only", {.ranks = 3, .microbatches = 5})));
  EXPECT_EQ(count(plans[0], Kind::AwaitSend), 0);
  EXPECT_EQ(plans[0].send_slots, 5);
}

}  // namespace
}  // namespace penstock::lower
