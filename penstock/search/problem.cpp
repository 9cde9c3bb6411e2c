#include "penstock/search/problem.h"

#include <algorithm>

#include "penstock/simulate/links.h"
#include "penstock/verify/hops.h"

namespace penstock::search {
namespace {

using schedule::Action;
using schedule::Op;
using schedule::Schedule;

std::size_t index(Kind kind) { return static_cast<std::size_t>(kind); }

std::optional<Kind> kind_of(Op op) {
  if (op == Op::Forward) return Kind::Forward;
  if (op == Op::BackwardInput) return Kind::Input;
  if (op == Op::BackwardWeight) return Kind::Weight;
  return {};
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
    : costs_(costs),
      microbatches_(static_cast<std::size_t>(microbatches)),
      stages_of_(static_cast<std::size_t>(ranks)) {
  if (memory_max) memory_max_ = *memory_max;
  for (std::size_t s = 0; s < rank_of_stage.size(); ++s) {
    rank_of_.push_back(rank_of_stage[s].index());
    stages_of_[rank_of_.back()].push_back(static_cast<std::uint16_t>(s));
  }
  fill_times();
  fill_handovers(rank_of_stage);
}

void Problem::fill_times() {
  for (std::size_t s = 0; s < stages(); ++s) {
    for (std::size_t m = 0; m < microbatches_; ++m) {
      for (const Kind kind : kEveryKind) {
        time_[index(kind)].push_back(
            costs_.of({.stage = StageId(s), .op = op_of(kind), .microbatch = Microbatch(m)}));
      }
      size_.push_back(costs_.activation.at(StageId(s), Microbatch(m)));
    }
  }
}

void Problem::fill_handovers(const std::vector<Rank>& rank_of_stage) {
  const Schedule sizes{.stages = static_cast<std::int32_t>(stages()),
                       .microbatches = static_cast<std::int32_t>(microbatches_)};
  const verify::Hops hops(sizes, rank_of_stage);
  const simulate::Links links(costs_, hops);
  links_ = links.count();
  handover_[index(Kind::Weight)].resize(stages());
  for (const Kind kind : {Kind::Forward, Kind::Input}) {
    const bool forward = kind == Kind::Forward;
    for (std::size_t s = 0; s < stages(); ++s) {
      const auto hop = static_cast<verify::HopId>(forward ? s : stages() + s);
      Handover handover{.exists = forward ? s + 1 < stages() : s > 0};
      if (handover.exists) {
        handover.taker = {.stage = static_cast<std::uint16_t>(forward ? s + 1 : s - 1),
                          .kind = kind};
      }
      const bool crosses = handover.exists && hops[hop].crosses();
      if (crosses && links.one_at_a_time(hop)) {
        handover.link = static_cast<std::uint32_t>(links.of(hop));
      }
      handover_[index(kind)].push_back(handover);
      for (std::size_t m = 0; m < microbatches_; ++m) {
        const auto message = static_cast<verify::MessageId>(hop * microbatches_ + m);
        const double transfer = crosses ? links.transfer(message) : 0.0;
        transfer_[index(kind)].push_back(transfer);
        transit_[index(kind)].push_back(crosses ? transfer + links.latency(hop) : 0.0);
      }
    }
  }
}

Schedule Problem::schedule_of(const Order& order) const {
  Schedule schedule{.name = "search",
                    .stages = static_cast<std::int32_t>(stages()),
                    .microbatches = static_cast<std::int32_t>(microbatches_)};
  std::vector<std::array<std::int32_t, kKinds>> next(stages());
  for (const std::vector<Turn>& turns : order) {
    schedule::Program& program = schedule.programs.emplace_back();
    program.reserve(turns.size());
    for (const Turn turn : turns) {
      program.push_back({.stage = StageId(std::size_t{turn.stage}),
                         .op = op_of(turn.kind),
                         .microbatch = Microbatch(next[turn.stage][index(turn.kind)]++)});
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
      order[rank].push_back({.stage = static_cast<std::uint16_t>(stage), .kind = kind});
      return rank_of_[stage] == rank && action.microbatch->value == next[stage][index(kind)]++;
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
