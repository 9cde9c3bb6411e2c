#include "penstock/search/windows.h"
#include <algorithm>
namespace penstock::search {
namespace {
constexpr int kSweepsMax = 300;
}
Windows::Windows(const Problem& problem, const std::vector<RankStates>& ranks, double end)
    : problem_(&problem), ranks_(&ranks), slack_(end * kRounding), is_due_(ranks.size(), 1) {
  const Chains& chains = problem.chains();
  for (const Kind kind : kEveryKind)
    for (std::size_t s = 0; s < problem.stages(); ++s)
      for (std::size_t m = 0; m < chains.microbatches(s); ++m) {
        times_.push_back(problem.time({static_cast<std::uint16_t>(s), kind}, m));
        windows_.push_back({0.0, end - times_.back()});
      }
  find_takers();
  for (const RankStates& states : ranks) steps_.push_back(states.steps());
}
void Windows::find_takers() {
  const Chains& chains = problem_->chains();
  takers_.resize(windows_.size());
  givers_.resize(windows_.size());
  for (const Kind kind : {Kind::Forward, Kind::Input})
    for (std::size_t s = 0; s < problem_->stages(); ++s) {
      const Turn turn{static_cast<std::uint16_t>(s), kind};
      const Handover& h = problem_->handover(turn);
      if (!h.exists) continue;
      for (std::size_t m = 0; m < chains.microbatches(s); ++m) {
        const TurnId a = turn_id(chains, kind, s, m), b = turn_id(chains, h.taker.kind, h.taker.stage, m);
        const double after = times_[a] + problem_->transit(turn, m);
        takers_[a] = {b, after, static_cast<std::uint32_t>(chains.rank_of(h.taker.stage)), true};
        givers_[b] = {a, after, static_cast<std::uint32_t>(chains.rank_of(s)), true};
      }
    }
}
bool Windows::narrow_all() {
  for (int sweep = 0; sweep < kSweepsMax; ++sweep) {
    bool any = false;
    for (std::size_t rank = 0; rank < steps_.size(); ++rank) {
      if (!is_due_[rank]) continue;
      is_due_[rank] = 0;
      any = true;
      if (!narrow((*ranks_)[rank].count(), steps_[rank], times_, slack_, windows_, scratch_)) return false;
      if (!hand_on(rank)) return false;
    }
    if (!any) return true;
  }
  return true;
}
bool Windows::hand_on(std::size_t rank) {
  const Chains& chains = problem_->chains();
  for (const std::uint16_t s : chains.stages_of(rank))
    for (const Kind kind : {Kind::Forward, Kind::Input})
      for (std::size_t m = 0; m < chains.microbatches(s); ++m) {
        const TurnId id = turn_id(chains, kind, s, m);
        if (const Taker& t = takers_[id]; t.exists) {
          const double first = windows_[id].first + t.after;
          if (first > windows_[t.turn].first + slack_) {
            windows_[t.turn].first = first;
            is_due_[t.rank] = 1;
            if (first > windows_[t.turn].last + slack_) return false;
          }
        }
        if (const Taker& g = givers_[id]; g.exists) {
          const double last = windows_[id].last - g.after;
          if (last < windows_[g.turn].last - slack_) {
            windows_[g.turn].last = last;
            is_due_[g.rank] = 1;
            if (last < windows_[g.turn].first - slack_) return false;
          }
        }
      }
  return true;
}
}
