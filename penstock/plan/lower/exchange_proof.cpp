#include "penstock/plan/lower/exchange_proof.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/text.h"
#include "penstock/plan/exchange/code.h"

namespace penstock::lower {
namespace {

using schedule::Action;
using schedule::Op;
using Does = RankStep::Does;

// Numbers of a replica's messages: by the sending stage, its direction and the microbatch.
std::int64_t message_of(const Action& send, const schedule::Schedule& schedule) {
  const std::int64_t direction = send.op == Op::SendForward ? 0 : 1;
  return (direction * schedule.stages + send.stage.value) * schedule.microbatches +
         send.microbatch->value;
}

// The RECV that a computation waits for, if the program has it.
std::optional<Action> receive_of(const Action& action) {
  if (action.op == Op::Forward) {
    return Action{.stage = action.stage, .op = Op::RecvForward, .microbatch = action.microbatch};
  }
  if (action.op == Op::Backward || action.op == Op::BackwardInput) {
    return Action{.stage = action.stage, .op = Op::RecvBackward, .microbatch = action.microbatch};
  }
  return std::nullopt;
}

// Exchanges by number.
struct NumberedExchange {
  std::int64_t number;
  Awaited awaited;
};
struct Numbered {
  std::vector<NumberedExchange> forward, backward, weights;
};

// A step of an action, and how many exchanges the rank awaits behind it, not in place.
struct ActionStep {
  RankStep step;
  std::int64_t awaits = 0;
};
using ActionSteps = std::vector<ActionStep>;

// Adds two actions, each up to where it awaits exchanges, then the other one.  Returns: how many
// are awaited behind steps of the other one.
std::int64_t add_braided(const std::array<ActionSteps, 2>& pair, std::vector<RankStep>& steps) {
  std::array<std::size_t, 2> next{};
  std::array<bool, 2> is_over{};
  std::int64_t beside = 0;
  std::size_t here = 0;
  while (!is_over[here]) {
    const std::size_t other = 1 - here;
    if (next[here] == pair[here].size()) {
      is_over[here] = true;
      here = other;
      continue;
    }
    const auto& [step, awaits] = pair[here][next[here]++];
    steps.push_back(step);
    if (awaits == 0 || is_over[other]) continue;
    beside += awaits;
    here = other;
  }
  return beside;
}

class Writer {
 public:
  Writer(const schedule::Schedule& schedule, const std::vector<StageExchanges>& stages,
         std::vector<std::string>& names)
      : schedule_(schedule) {
    const auto number_all = [&](const PassExchanges& pass) {
      std::vector<NumberedExchange> numbers;
      for (const PassExchange& each : pass) {
        const auto [found, is_new] = numbers_.emplace(each.name, std::ssize(names));
        if (is_new) names.push_back(each.name);
        numbers.push_back({found->second, each.awaited});
      }
      return numbers;
    };
    for (const StageExchanges& each : stages) {
      numbered_.push_back(
          {number_all(each.forward), number_all(each.backward), number_all(each.weights)});
    }
  }

  // The steps of a rank of the schedule, whose messages begin at number `first`.
  std::vector<RankStep> steps(const schedule::Program& program, std::int64_t first,
                              std::int64_t& beside_pass) const {
    std::set<Action> receives;
    for (const Action& action : program) {
      if (schedule::is_receive(action.op)) receives.insert(action);
    }
    std::vector<RankStep> steps;
    for (std::size_t i = 0; i < program.size(); ++i) {
      const bool is_pair = program[i].overlaps_next;
      const std::array<ActionSteps, 2> pair{
          steps_of(program, i, first, receives),
          is_pair ? steps_of(program, i + 1, first, receives) : ActionSteps()};
      const std::int64_t changes = add_braided(pair, steps);
      if (!is_pair) continue;
      beside_pass += changes;
      ++i;
    }
    return steps;
  }

 private:
  ActionSteps steps_of(const schedule::Program& program, std::size_t i, std::int64_t first,
                       const std::set<Action>& receives) const {
    const Action& action = program[i];
    ActionSteps steps;
    const auto add = [&](Does does, std::int64_t what) {
      steps.push_back({{.does = does, .action = static_cast<std::int32_t>(i), .what = what}});
    };
    if (schedule::is_send(action.op)) add(Does::Send, first + message_of(action, schedule_));
    if (!schedule::is_compute(action.op)) return steps;
    const std::optional<Action> receive = receive_of(action);
    if (receive && receives.contains(*receive)) {
      add(Does::Await, first + message_of(other_end(*receive), schedule_));
    }
    add(Does::Compute, 0);
    const Numbered& stage = numbered_[action.stage.index()];
    const auto add_all = [&](const std::vector<NumberedExchange>& exchanges) {
      std::int64_t coming = 0;
      for (const auto& [number, awaited] : exchanges) {
        add(Does::Exchange, number);
        if (awaited != Awaited::InPlace) ++coming;
        if (awaited == Awaited::Aside) steps.back().awaits = std::exchange(coming, 0);
      }
    };
    if (action.op == Op::Forward) add_all(stage.forward);
    if (action.op == Op::Backward || action.op == Op::BackwardInput) add_all(stage.backward);
    if (action.op == Op::Backward || action.op == Op::BackwardWeight) add_all(stage.weights);
    return steps;
  }

  const schedule::Schedule& schedule_;
  std::map<std::string, std::int64_t> numbers_;
  std::vector<Numbered> numbered_;
};

// Runs all ranks as far as they come.
class Replay {
 public:
  explicit Replay(const MeshProgram& program)
      : program_(program),
        next_(program.ranks.size(), 0),
        is_sent_(static_cast<std::size_t>(program.messages), false),
        waits_for_(is_sent_.size(), -1),
        arrived_(program.groups.size()) {
    for (std::size_t rank = program.ranks.size(); rank-- > 0;) ready_.push_back(rank);
  }

  void run() {
    while (!ready_.empty() && !differs_) {
      const std::size_t rank = ready_.back();
      ready_.pop_back();
      advance(rank);
    }
  }

  // The first exchange to which ranks of a group come differently.
  struct Difference {
    std::size_t rank, other;
  };
  const std::optional<Difference>& differs() const { return differs_; }
  // Ranks that have steps left, rising.
  std::vector<std::size_t> stuck() const {
    std::vector<std::size_t> ranks;
    for (std::size_t rank = 0; rank < next_.size(); ++rank) {
      if (!is_over(rank)) ranks.push_back(rank);
    }
    return ranks;
  }
  bool is_over(std::size_t rank) const { return next_[rank] == program_.ranks[rank].size(); }
  const RankStep& step(std::size_t rank) const { return program_.ranks[rank][next_[rank]]; }

 private:
  void advance(std::size_t rank) {
    const std::vector<RankStep>& steps = program_.ranks[rank];
    for (; next_[rank] < steps.size(); ++next_[rank]) {
      const RankStep& step = steps[next_[rank]];
      if (step.does == Does::Send) send(static_cast<std::size_t>(step.what));
      if (step.does == Does::Await && !has_come(static_cast<std::size_t>(step.what), rank)) return;
      if (step.does == Does::Exchange && !all_have_come(rank)) return;
    }
  }

  void send(std::size_t message) {
    is_sent_[message] = true;
    if (waits_for_[message] >= 0) ready_.push_back(static_cast<std::size_t>(waits_for_[message]));
  }

  bool has_come(std::size_t message, std::size_t rank) {
    if (!is_sent_[message]) waits_for_[message] = static_cast<std::int64_t>(rank);
    return is_sent_[message];
  }

  // The last one lets the others go on.
  bool all_have_come(std::size_t rank) {
    const auto group = static_cast<std::size_t>(program_.group_of[rank]);
    std::vector<std::size_t>& here = arrived_[group];
    if (!here.empty() && step(here.front()).what != step(rank).what) {
      differs_ = {.rank = rank, .other = here.front()};
      return false;
    }
    here.push_back(rank);
    if (here.size() < program_.groups[group].size()) return false;
    for (const std::size_t other : here) {
      if (other == rank) continue;
      ++next_[other];
      ready_.push_back(other);
    }
    here.clear();
    return true;
  }

  const MeshProgram& program_;
  std::vector<std::size_t> next_;  // Next step of each rank.
  std::vector<bool> is_sent_;
  std::vector<std::int64_t> waits_for_;            // The rank that waits for a message; -1: none.
  std::vector<std::vector<std::size_t>> arrived_;  // Ranks that are in their group's exchange.
  std::vector<std::size_t> ready_;
  std::optional<Difference> differs_;
};

constexpr std::size_t kToldMax = 4;  // Ranks that a text about waits tells of.

}  // namespace

MeshProgram mesh_program(const verify::VerifiedSchedule& verified,
                         const std::vector<StageExchanges>& stages, const mesh::Mesh& mesh) {
  const schedule::Schedule& schedule = verified.schedule();
  PENSTOCK_CHECK(schedule.replicas == 1 && std::cmp_equal(stages.size(), schedule.stages),
                 stages.size(), " stages");
  MeshProgram program{.groups = mesh.groups(mesh::Role::SameLayers)};
  const Writer writer(schedule, stages, program.names);
  const std::int64_t of_replica = std::int64_t{2} * schedule.stages * schedule.microbatches;
  program.group_of.resize(static_cast<std::size_t>(mesh.world_size()));
  for (std::size_t g = 0; g < program.groups.size(); ++g) {
    for (const Rank rank : program.groups[g]) {
      program.group_of[rank.index()] = static_cast<std::int32_t>(g);
    }
  }
  // Ranks along the pipe have one number in all other axes: that of its messages' first.
  std::map<Rank, std::int64_t> firsts;
  for (std::int32_t r = 0; r < mesh.world_size(); ++r) {
    const Rank rank(r);
    const Rank replica = mesh.ends(rank, mesh::Role::Pipe).first;
    const auto first = firsts.emplace(replica, std::ssize(firsts) * of_replica).first->second;
    const auto of_schedule = static_cast<std::size_t>(mesh.index(rank, mesh::Role::Pipe));
    program.ranks.push_back(
        writer.steps(schedule.programs[of_schedule], first, program.beside_pass.emplace_back()));
  }
  program.messages = std::ssize(firsts) * of_replica;
  return program;
}

std::vector<std::string> objections(const MeshProgram& program,
                                    const verify::VerifiedSchedule& verified) {
  const schedule::Schedule& schedule = verified.schedule();
  Replay replay(program);
  replay.run();
  const std::size_t of_pipe = program.ranks.size() / schedule.programs.size();
  const auto place = [&](std::size_t rank) {
    if (replay.is_over(rank)) return str("rank ", rank, " has ended");
    const RankStep& step = replay.step(rank);
    const Action& action = schedule.programs[rank / of_pipe][static_cast<std::size_t>(step.action)];
    const std::string what = step.does == Does::Exchange
                                 ? program.names[static_cast<std::size_t>(step.what)]
                                 : std::string("its input");
    return str("rank ", rank, " waits in ", schedule::to_string(action), " for ", what);
  };
  if (replay.differs()) {
    return {coded(exchange::Code::OtherExchanges,
                  str("ranks that share layers come to different exchanges: ",
                      place(replay.differs()->rank), ", and ", place(replay.differs()->other)))};
  }
  const std::vector<std::size_t> stuck = replay.stuck();
  if (stuck.empty()) return {};
  std::vector<std::string> waits;
  for (std::size_t i = 0; i < std::min(stuck.size(), kToldMax); ++i)
    waits.push_back(place(stuck[i]));
  return {coded(exchange::Code::Circle,
                str(stuck.size(), " ranks wait for ever: ", join(waits, "; ")))};
}

}  // namespace penstock::lower
