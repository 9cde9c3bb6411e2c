#include "penstock/plan/search/clock.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace penstock::search {

Clock::Clock(const Problem& problem)
    : problem_(problem),
      next_(problem.stages()),
      free_(problem.ranks()),
      link_free_(problem.links()),
      at_(problem.ranks()),
      blocked_on_(problem.ranks()),
      start_(problem.ranks()),
      cause_(problem.ranks()) {
  for (auto& inputs : inputs_) inputs.resize(problem.chains().cells());
  for (std::size_t rank = 0; rank < problem.ranks(); ++rank) {
    const std::size_t turns = kKinds * problem.chains().cells_of(rank);
    double work = 0.0;
    for (const std::uint16_t stage : problem.stages_of(rank)) {
      for (std::size_t m = 0; m < problem.chains().microbatches(stage); ++m) {
        for (const Kind kind : kEveryKind) {
          const SearchStep turn{stage, kind};
          work += problem.joined().hides() ? problem.joined().least_time(turn, m)
                                           : problem.time(turn, m);
        }
      }
    }
    work_.push_back(work);
    start_[rank].resize(turns);
    cause_[rank].resize(turns);
  }
}

void Clock::reset() {
  for (auto& inputs : inputs_) std::ranges::fill(inputs, Input{});
  // The first stages' inputs are there, and the last ones' gradients come from their own F.
  for (std::size_t stage = 0; stage < problem_.stages(); ++stage) {
    for (std::size_t m = 0; m < problem_.chains().microbatches(stage); ++m) {
      if (problem_.chains().is_first(stage))
        inputs_[0][problem_.chains().cell(stage, m)].time = 0.0;
      if (problem_.chains().is_last(stage)) inputs_[1][problem_.chains().cell(stage, m)].time = 0.0;
    }
  }
  std::ranges::fill(next_, std::array<std::uint32_t, kKinds>{});
  std::ranges::fill(free_, 0.0);
  std::ranges::fill(link_free_, 0.0);
  std::ranges::fill(at_, 0U);
  std::ranges::fill(blocked_on_, nullptr);
  end_ = work_;
  latest_ = std::ranges::max(end_);
  mean_end_ = std::accumulate(end_.begin(), end_.end(), 0.0) / static_cast<double>(end_.size());
}

double Clock::run(const Order& order, double most) {
  reset();
  ready_.clear();
  for (std::size_t rank = problem_.ranks(); rank > 0; --rank) ready_.push_back(rank - 1);
  while (!ready_.empty()) {
    const std::size_t rank = ready_.back();
    ready_.pop_back();
    if (!advance(order, rank) || cost() > most) return kStuck;
  }
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    if (at_[rank] < start_[rank].size()) return kStuck;
  }
  return cost();
}

double Clock::makespan() const { return std::ranges::max(free_); }

// Whether the turn can run, as far as its own stage and its input tell; then the unit starts when
// its input is there.  Never: it comes before its own stage's F or I.
Clock::Readiness Clock::look_at(SearchStep turn, std::uint32_t microbatch, std::size_t rank,
                                Unit& unit) {
  const auto& next = next_[turn.stage];
  if (turn.kind == Kind::Weight) {
    return microbatch < next[static_cast<std::size_t>(Kind::Input)] ? Readiness::Ready
                                                                    : Readiness::Never;
  }
  if (turn.kind == Kind::Input && microbatch >= next[0]) return Readiness::Never;
  const Input& needed = input(turn, microbatch);
  if (needed.time < 0.0) {
    blocked_on_[rank] = &needed;
    return Readiness::Waits;
  }
  if (needed.time > unit.start) {
    unit.waited += needed.time - unit.start;
    unit.start = needed.time;
    unit.cause = needed.by;
  }
  return Readiness::Ready;
}

// The same of joined turns, which it collects.  Never, too: turns are joined that cannot be.
Clock::Readiness Clock::look_at_joined(const std::vector<SearchStep>& turns, std::uint32_t at,
                                       std::size_t rank, Unit& unit) {
  for (unit.count = 0;;) {
    const SearchStep turn = turns[at + unit.count];
    const auto& next = next_[turn.stage];
    const std::uint32_t microbatch = next[static_cast<std::size_t>(turn.kind)];
    const bool is_own_weight =
        unit.count > 0 && unit.turns[unit.count - 1].step.kind == Kind::Input;
    unit.turns[unit.count++] = {turn, microbatch};
    if (is_own_weight) {
      if (microbatch != next[static_cast<std::size_t>(Kind::Input)]) return Readiness::Never;
    } else {
      const Readiness readiness = look_at(turn, microbatch, rank, unit);
      if (readiness != Readiness::Ready) return readiness;
    }
    if (!turn.joined) break;
    if (at + unit.count == turns.size() || !may_join(turn, turns[at + unit.count])) {
      return Readiness::Never;
    }
  }
  unit.end = problem_.joined().end(unit.start, std::span(unit.turns).first(unit.count));
  return Readiness::Ready;
}

// False when a turn of the rank can never run.
bool Clock::advance(const Order& order, std::size_t rank) {
  const std::vector<SearchStep>& turns = order[rank];
  const bool joins = problem_.joined().hides();
  double waited = 0.0;
  Unit unit{.start = free_[rank]};
  std::uint32_t at = at_[rank];
  while (at < turns.size()) {
    const SearchStep first = turns[at];
    const std::uint32_t microbatch = next_[first.stage][static_cast<std::size_t>(first.kind)];
    const Place here{static_cast<std::uint32_t>(rank), at};
    const double free = unit.start;
    unit.waited = 0.0;
    unit.cause = here;
    const Readiness readiness = first.joined ? look_at_joined(turns, at, rank, unit)
                                             : look_at(first, microbatch, rank, unit);
    if (readiness == Readiness::Never) return false;
    if (readiness == Readiness::Waits) {
      unit.start = free;
      break;
    }
    waited += unit.waited;
    cause_[rank][at] = unit.cause;
    const double end = first.joined ? unit.end : unit.start + problem_.time(first, microbatch);
    if (joins) waited += end - unit.start;
    const auto run = [&](SearchStep turn, std::size_t of) {
      ++next_[turn.stage][static_cast<std::size_t>(turn.kind)];
      start_[rank][at] = unit.start;
      if (joins) waited -= problem_.joined().least_time(turn, of);
      hand_over(turn, of, end, {here.rank, at});
      ++at;
    };
    if (!first.joined) {
      run(first, microbatch);
    } else {
      for (std::size_t i = 0; i < unit.count; ++i) {
        if (i > 0) cause_[rank][at] = {here.rank, at};
        run(unit.turns[i].step, unit.turns[i].microbatch);
      }
    }
    unit.start = end;
  }
  free_[rank] = unit.start;
  at_[rank] = at;
  end_[rank] += waited;
  latest_ = std::max(latest_, end_[rank]);
  mean_end_ += waited / static_cast<double>(end_.size());
  return true;
}

void Clock::hand_over(SearchStep turn, std::size_t microbatch, double end, Place by) {
  const Handover& handover = problem_.handover(turn);
  if (!handover.exists) return;
  double out = end;
  if (handover.link) {
    double& link_free = link_free_[*handover.link];
    out = std::max(out, link_free);
    link_free = out + problem_.transfer(turn, microbatch);
  }
  Input& taken = input(handover.taker, microbatch);
  taken = {out + problem_.transit(turn, microbatch), by};
  const std::size_t taker = problem_.chains().rank_of(handover.taker.stage);
  if (blocked_on_[taker] != &taken) return;
  blocked_on_[taker] = nullptr;
  ready_.push_back(taker);
}

void Clock::waits(std::vector<Place>& places) const {
  places.clear();
  for (std::uint32_t rank = 0; rank < cause_.size(); ++rank) {
    for (std::uint32_t at = 0; at < cause_[rank].size(); ++at) {
      const Place here{rank, at};
      if (cause(here) != here) places.push_back(here);
    }
  }
}

void Clock::critical_path(const Order& order, std::vector<Place>& path) const {
  path.clear();
  const std::size_t last =
      static_cast<std::size_t>(std::ranges::max_element(free_) - free_.begin());
  Place place{static_cast<std::uint32_t>(last), static_cast<std::uint32_t>(order[last].size() - 1)};
  while (true) {
    path.push_back(place);
    const Place cause = cause_[place.rank][place.at];
    if (cause != place) {
      place = cause;
    } else if (place.at > 0) {
      --place.at;
    } else {
      return;
    }
  }
}

}  // namespace penstock::search
