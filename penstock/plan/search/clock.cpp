#include "penstock/plan/search/clock.h"

#include <algorithm>
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
          work += problem.time({stage, kind}, m);
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

// False when a turn comes before its own stage's F or I.
bool Clock::advance(const Order& order, std::size_t rank) {
  const std::vector<SearchStep>& turns = order[rank];
  double free = free_[rank];
  double waited = 0.0;
  std::uint32_t at = at_[rank];
  for (; at < turns.size(); ++at) {
    const SearchStep turn = turns[at];
    auto& next = next_[turn.stage];
    const std::uint32_t microbatch = next[static_cast<std::size_t>(turn.kind)];
    const Place here{static_cast<std::uint32_t>(rank), at};
    Place cause = here;
    double start = free;
    if (turn.kind == Kind::Weight) {
      if (microbatch >= next[static_cast<std::size_t>(Kind::Input)]) return false;
    } else {
      if (turn.kind == Kind::Input && microbatch >= next[0]) return false;
      const Input& needed = input(turn, microbatch);
      if (needed.time < 0.0) {
        blocked_on_[rank] = &needed;
        break;
      }
      if (needed.time > start) {
        waited += needed.time - start;
        start = needed.time;
        cause = needed.by;
      }
    }
    ++next[static_cast<std::size_t>(turn.kind)];
    start_[rank][at] = start;
    cause_[rank][at] = cause;
    free = start + problem_.time(turn, microbatch);
    hand_over(turn, microbatch, free, here);
  }
  free_[rank] = free;
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
