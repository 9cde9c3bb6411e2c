#include "penstock/plan/search/problem.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace penstock::search {
namespace {

using schedule::Action;
using schedule::Op;
using schedule::Schedule;

std::optional<Kind> kind_of(Op op) {
  if (op == Op::Forward) return Kind::Forward;
  if (op == Op::BackwardInput) return Kind::Input;
  if (op == Op::BackwardWeight) return Kind::Weight;
  return {};
}

Chain one_chain(std::vector<Rank> rank_of_stage, std::int32_t microbatches) {
  Chain chain{.rank_of_stage = std::move(rank_of_stage)};
  chain.microbatches.resize(static_cast<std::size_t>(microbatches));
  std::iota(chain.microbatches.begin(), chain.microbatches.end(), 0);
  return chain;
}

}  // namespace

Op op_of(Kind kind) {
  switch (kind) {
    case Kind::Forward:
      return Op::Forward;
    case Kind::Input:
      return Op::BackwardInput;
    case Kind::Weight:
      return Op::BackwardWeight;
  }
  return Op::Forward;
}

Problem::Problem(std::vector<Rank> rank_of_stage, std::int32_t ranks, std::int32_t microbatches,
                 const simulate::Costs& costs, std::optional<double> memory_max)
    : Problem({one_chain(std::move(rank_of_stage), microbatches)}, ranks, costs, memory_max) {}

Problem::Problem(std::vector<Rank> rank_of_stage, std::int32_t ranks, std::int32_t microbatches,
                 const simulate::Costs& costs, std::vector<double> memory_of_ranks)
    : Problem({one_chain(std::move(rank_of_stage), microbatches)}, ranks, costs, std::nullopt) {
  memory_max_ = std::move(memory_of_ranks);
}

Problem::Problem(std::vector<Chain> chains, std::int32_t ranks, const simulate::Costs& costs,
                 std::optional<double> memory_max)
    : costs_(costs),
      chains_(std::move(chains), ranks),
      joined_(chains_, costs_),
      memory_max_(static_cast<std::size_t>(ranks),
                  memory_max.value_or(std::numeric_limits<double>::infinity())) {
  fill_times();
  fill_handovers();
}

void Problem::fill_times() {
  for (std::size_t s = 0; s < stages(); ++s) {
    const StageId stage(chains_.in_chain(s));
    for (const std::int32_t number : chains_.of(s).microbatches) {
      const Microbatch microbatch(number);
      for (const Kind kind : kEveryKind) {
        time_[index(kind)].push_back(
            costs_.of({.stage = stage, .op = op_of(kind), .microbatch = microbatch}));
      }
      size_.push_back(costs_.activation.at(stage, microbatch));
    }
  }
}

void Problem::fill_handovers() {
  const Schedule sizes{.stages = static_cast<std::int32_t>(chains_.stages_per_chain()),
                       .microbatches = static_cast<std::int32_t>(chains_.microbatches())};
  const verify::Hops hops(sizes, chains_.homes());
  const simulate::Links links(costs_, hops);
  links_ = links.count();
  handover_[index(Kind::Weight)].resize(stages());
  for (const Kind kind : {Kind::Forward, Kind::Input}) {
    for (std::size_t s = 0; s < stages(); ++s) fill_handover(s, kind, hops, links);
  }
}

void Problem::fill_handover(std::size_t stage, Kind kind, const verify::Hops& hops,
                            const simulate::Links& links) {
  const bool forward = kind == Kind::Forward;
  const std::size_t model_stage = chains_.in_chain(stage);
  Handover handover{.exists = forward ? !chains_.is_last(stage) : !chains_.is_first(stage)};
  if (handover.exists) {
    handover.taker = {.stage = static_cast<std::uint16_t>(forward ? stage + 1 : stage - 1),
                      .kind = kind};
  }
  const std::size_t direction = forward ? model_stage : chains_.stages_per_chain() + model_stage;
  const std::size_t way = chains_.count() == 1 ? 0 : stage / chains_.stages_per_chain();
  const auto hop = static_cast<verify::HopId>(2 * chains_.stages_per_chain() * way + direction);
  const bool crosses = handover.exists && hops[hop].crosses();
  if (crosses && links.one_at_a_time(hop)) {
    handover.link = static_cast<std::uint32_t>(links.of(hop));
  }
  handover_[index(kind)].push_back(handover);
  for (const std::int32_t number : chains_.of(stage).microbatches) {
    const auto message = static_cast<verify::MessageId>(direction * chains_.microbatches()) +
                         static_cast<verify::MessageId>(number);
    const double transfer = crosses ? links.transfer(message) : 0.0;
    transfer_[index(kind)].push_back(transfer);
    transit_[index(kind)].push_back(crosses ? transfer + links.latency(hop) : 0.0);
  }
}

Schedule Problem::schedule_of(const Order& order) const {
  Schedule schedule{.name = "search",
                    .stages = static_cast<std::int32_t>(chains_.stages_per_chain()),
                    .microbatches = static_cast<std::int32_t>(chains_.microbatches())};
  std::vector<std::array<std::size_t, kKinds>> next(stages());
  for (const std::vector<SearchStep>& turns : order) {
    schedule::Program& program = schedule.programs.emplace_back();
    program.reserve(turns.size());
    bool is_of_whole = false;
    for (const SearchStep turn : turns) {
      const std::size_t microbatch = next[turn.stage][index(turn.kind)]++;
      if (!std::exchange(is_of_whole, turn.kind == Kind::Input && turn.joined)) {
        program.push_back({.stage = StageId(chains_.in_chain(turn.stage)),
                           .op = op_of(turn.kind),
                           .microbatch = Microbatch(chains_.number_of(turn.stage, microbatch))});
      }
      if (turn.joined && turn.kind == Kind::Forward) program.back().overlaps_next = true;
      if (is_of_whole) program.back().op = Op::Backward;
    }
  }
  return schedule;
}

std::optional<Order> Problem::order_of(const Schedule& schedule) const {
  Order order(ranks());
  std::vector<std::array<std::int32_t, kKinds>> next(stages());
  for (std::size_t rank = 0; rank < ranks(); ++rank) {
    const auto add = [&](const Action& action, Kind kind) {
      const std::size_t stage = action.stage.index();
      const bool is_whole = action.op == Op::Backward && kind == Kind::Input;
      order[rank].push_back({.stage = static_cast<std::uint16_t>(stage),
                             .kind = kind,
                             .joined = joined_.hides() && (is_whole || action.overlaps_next)});
      return chains_.rank_of(stage) == rank &&
             action.microbatch->value == next[stage][index(kind)]++;
    };
    for (const Action& action : schedule.programs[rank]) {
      if (action.op == Op::Backward) {
        if (!add(action, Kind::Input) || !add(action, Kind::Weight)) return {};
      } else if (!add(action, *kind_of(action.op))) {
        return {};
      }
    }
  }
  return order;
}

}  // namespace penstock::search
