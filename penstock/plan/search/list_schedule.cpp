#include "penstock/plan/search/list_schedule.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <span>

#include "penstock/plan/search/clock.h"

namespace penstock::search {
namespace {

constexpr double kNotMade = -1.0;

}  // namespace

Targets::Targets(const Problem& problem) : problem_(problem) {
  for (auto& values : values_) values.resize(problem.chains().cells());
}

ListScheduler::ListScheduler(const Problem& problem) : problem_(problem), order_(problem.ranks()) {
  for (std::size_t rank = 0; rank < problem.ranks(); ++rank) {
    double most = 0.0;
    for (const std::vector<std::uint16_t>& stages : problem.chains().on(rank)) {
      for (std::size_t m = 0; m < problem.chains().microbatches(stages.front()); ++m) {
        double sum = 0.0;
        for (const std::uint16_t stage : stages) sum += problem.size(stage, m);
        most = std::max(most, sum);
      }
    }
    all_stages_.push_back(most);
    ranks_.push_back(
        {.live = {schedule::Purpose::Train, problem.costs().activation, problem.keep()}});
    order_[rank].reserve(kKinds * problem.chains().cells_of(rank));
  }
}

void ListScheduler::reset() {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    ranks_[rank] = {
        .live = {schedule::Purpose::Train, problem_.costs().activation, problem_.keep()}};
    order_[rank].clear();
  }
  next_.assign(problem_.stages(), {});
  link_free_.assign(problem_.links(), 0.0);
  for (auto& arrivals : arrival_) arrivals.assign(problem_.chains().cells(), kNotMade);
  for (std::size_t stage = 0; stage < problem_.stages(); ++stage) {
    for (std::size_t m = 0;
         problem_.chains().is_first(stage) && m < problem_.chains().microbatches(stage); ++m) {
      arrival_[0][problem_.chains().cell(stage, m)] = 0.0;
    }
  }
  wakes_ = {};
}

const Order& ListScheduler::run(const Targets& targets, const Habits& habits) {
  reset();
  targets_ = &targets;
  habits_ = habits;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    wake(rank, 0.0);
  }
  while (!wakes_.empty()) {
    const Wake next = wakes_.top();
    wakes_.pop();
    RankState& state = ranks_[next.rank];
    if (state.wakes != next.time) continue;  // It was woken earlier.
    state.wakes = -1.0;
    decide(next.rank, next.time);
  }
  return order_;
}

void ListScheduler::wake(std::size_t rank, double time) {
  RankState& state = ranks_[rank];
  const double when = std::max(time, state.free);
  if (state.wakes >= 0.0 && state.wakes <= when) return;
  state.wakes = when;
  wakes_.push({when, rank});
}

// The microbatch with the lowest number that the rank is not through with: of all ranks the same
// one comes first, so that somebody can always go on.
ListScheduler::Oldest ListScheduler::oldest(std::size_t rank) const {
  const std::vector<std::uint16_t>* of = nullptr;
  std::int32_t lowest = std::numeric_limits<std::int32_t>::max();
  for (const std::vector<std::uint16_t>& stages : problem_.chains().on(rank)) {
    const std::uint32_t microbatch = next_[stages.front()][index(Kind::Input)];
    if (microbatch == problem_.chains().microbatches(stages.front())) continue;
    const std::int32_t number = problem_.chains().number_of(stages.front(), microbatch);
    if (number >= lowest) continue;
    lowest = number;
    of = &stages;
  }
  return {*of, next_[of->front()][index(Kind::Input)]};
}

// Room for it now, and room to finish, after it, the oldest microbatch that the rank is not through
// with: then that one's memory is free for the next one.
bool ListScheduler::may_start(std::size_t rank, std::size_t stage) const {
  const RankState& state = ranks_[rank];
  const std::size_t microbatch = next_[stage][0];
  const double size = problem_.size(stage, microbatch);
  if (state.live.memory() + size > problem_.memory_max(rank)) return false;
  const auto& [stages, first] = oldest(rank);
  if (problem_.chains().number_of(stage, microbatch) ==
      problem_.chains().number_of(stages.front(), first)) {
    return true;
  }
  double others = state.unfinished + size;
  for (const std::uint16_t each : stages) {
    const bool holds_it = next_[each][0] > first && next_[each][index(Kind::Input)] <= first;
    if (holds_it) others -= problem_.size(each, first);
  }
  return others + all_stages_[rank] <= problem_.memory_max(rank) * (1.0 + kRounding);
}

template <class Use>
void ListScheduler::each_candidate(std::size_t rank, double now, const Use& use) const {
  for (const std::uint16_t stage : problem_.stages_of(rank)) {
    const auto& next = next_[stage];
    const auto offer = [&](Kind kind, double start) {
      const SearchStep turn{stage, kind};
      use(Candidate{turn, std::max(now, start), targets_->of(turn, next[index(kind)])});
    };
    if (next[0] < problem_.chains().microbatches(stage)) {
      const double arrival = arrival_[0][problem_.chains().cell(stage, next[0])];
      const double released = targets_->of({stage, Kind::Forward}, next[0]) - habits_.early;
      if (arrival >= 0.0 && may_start(rank, stage)) {
        offer(Kind::Forward, std::max(arrival, released));
      }
    }
    if (next[1] < next[0]) {
      const double arrival = arrival_[1][problem_.chains().cell(stage, next[1])];
      if (arrival >= 0.0) offer(Kind::Input, arrival);
    }
    if (next[2] < next[1]) offer(Kind::Weight, now);
  }
}

void ListScheduler::decide(std::size_t rank, double now) {
  std::optional<Candidate> best;
  double first_arrival = std::numeric_limits<double>::infinity();
  each_candidate(rank, now, [&](const Candidate& candidate) {
    if (candidate.start > now) {
      first_arrival = std::min(first_arrival, candidate.start);
    } else if (!best || candidate.target < best->target) {
      best = candidate;
    }
  });
  if (best && habits_.patience > 0.0 && first_arrival < std::numeric_limits<double>::infinity()) {
    const double until =
        now + habits_.patience *
                  problem_.time(best->turn, next_[best->turn.stage][index(best->turn.kind)]);
    double worth_waiting = std::numeric_limits<double>::infinity();
    each_candidate(rank, now, [&](const Candidate& candidate) {
      if (candidate.start <= now || candidate.start >= until) return;
      if (candidate.target < best->target) {
        worth_waiting = std::min(worth_waiting, candidate.start);
      }
    });
    if (worth_waiting < until) return wake(rank, worth_waiting);
  }
  if (best) {
    double later = now;
    const Unit unit =
        problem_.joined().hides() ? joined(rank, now, best->turn, later) : Unit{{best->turn}, 1};
    if (unit.count == 0) return wake(rank, later);
    start(rank, unit, now);
  } else if (first_arrival < std::numeric_limits<double>::infinity()) {
    wake(rank, first_arrival);
  }
}

// An F takes the backward whose target is the earliest, and the other way round; an I its own W.
ListScheduler::Unit ListScheduler::joined(std::size_t rank, double now, SearchStep turn,
                                          double& later) const {
  const bool is_forward = turn.kind == Kind::Forward;
  std::optional<Candidate> best;
  later = now + habits_.company * problem_.time(turn, next_[turn.stage][index(turn.kind)]);
  const double until = later;
  each_candidate(rank, now, [&](const Candidate& candidate) {
    if ((candidate.turn.kind == Kind::Forward) == is_forward) return;
    if (candidate.start > now) {
      later = std::min(later, candidate.start);
    } else if (!best || candidate.target < best->target) {
      best = candidate;
    }
  });
  if (!best && later < until) return {};
  Unit unit;
  if (best && !is_forward) unit.add(best->turn);
  unit.add(turn);
  if (best && is_forward) unit.add(best->turn);
  const SearchStep last = unit.turns[unit.count - 1];
  const auto& next = next_[last.stage];
  const SearchStep weight{last.stage, Kind::Weight};
  if (last.kind == Kind::Input && next[1] == next[2] &&
      targets_->of(weight, next[2]) <= now + habits_.whole) {
    unit.add(weight);
  }
  for (std::size_t i = 0; i + 1 < unit.count; ++i) unit.turns[i].joined = true;
  return unit;
}

void ListScheduler::start(std::size_t rank, const Unit& unit, double now) {
  RankState& state = ranks_[rank];
  std::array<Turn, kKinds> turns;
  for (std::size_t i = 0; i < unit.count; ++i) {
    const SearchStep turn = unit.turns[i];
    const std::size_t microbatch = next_[turn.stage][index(turn.kind)]++;
    turns[i] = {turn, microbatch};
    const double size = problem_.size(turn.stage, microbatch);
    state.live.start(op_of(turn.kind), size);
    state.live.end(op_of(turn.kind), size);
    if (turn.kind == Kind::Forward) state.unfinished += size;
    if (turn.kind == Kind::Input) state.unfinished -= size;
    order_[rank].push_back(turn);
  }
  const std::span<const Turn> all(turns.data(), unit.count);
  state.free = unit.count == 1 ? now + problem_.time(turns[0].step, turns[0].microbatch)
                               : problem_.joined().end(now, all);
  wake(rank, state.free);
  for (const auto& [turn, microbatch] : all) hand_over(rank, turn, microbatch, state.free);
}

void ListScheduler::hand_over(std::size_t rank, SearchStep turn, std::size_t microbatch,
                              double end) {
  if (turn.kind == Kind::Forward && problem_.chains().is_last(turn.stage)) {
    arrival_[1][problem_.chains().cell(turn.stage, microbatch)] = end;
  }
  const Handover& handover = problem_.handover(turn);
  if (!handover.exists) return;
  double out = end;
  if (handover.link) {
    double& link_free = link_free_[*handover.link];
    out = std::max(out, link_free);
    link_free = out + problem_.transfer(turn, microbatch);
  }
  const double arrival = out + problem_.transit(turn, microbatch);
  arrival_[index(turn.kind)][problem_.chains().cell(handover.taker.stage, microbatch)] = arrival;
  const std::size_t taker = problem_.chains().rank_of(handover.taker.stage);
  if (taker != rank) wake(taker, arrival);
}

}  // namespace penstock::search
