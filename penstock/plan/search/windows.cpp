#include "penstock/plan/search/windows.h"

#include <algorithm>
#include <utility>

namespace penstock::search {
namespace {

// Limit on sweeps: where windows creep towards each other, nothing is lost by giving up.
constexpr int kSweepsMax = 400;
// Less than kRounding, as a share of the end: what sums of the same numbers may differ by.
constexpr double kSlack = 1e-11;

}  // namespace

std::optional<Ways> Ways::of(const Problem& problem, std::size_t steps_max) {
  Ways ways{.problem = &problem};
  const Chains& chains = problem.chains();
  for (std::size_t rank = 0; rank < problem.ranks(); ++rank) {
    auto states = RankStates::of(problem, rank, steps_max / problem.ranks());
    if (!states) return {};
    ways.ranks.push_back(std::move(*states));
  }
  const std::size_t turns = problem.turns();
  ways.turns.resize(turns);
  ways.times.resize(turns);
  ways.takers.resize(turns);
  ways.makers.resize(turns);
  for (std::size_t s = 0; s < problem.stages(); ++s) {
    for (std::size_t m = 0; m < chains.microbatches(s); ++m) {
      for (const Kind kind : kEveryKind) {
        const SearchStep turn{static_cast<std::uint16_t>(s), kind};
        const TurnId maker = turn_id(chains, kind, s, m);
        ways.turns[maker] = turn;
        ways.times[maker] = problem.time(turn, m);
        const Handover& handover = problem.handover(turn);
        if (!handover.exists) continue;
        const std::uint16_t to = handover.taker.stage;
        const TurnId taker = turn_id(chains, handover.taker.kind, to, m);
        const double after = ways.times[maker] + problem.transit(turn, m);
        const auto rank_of = [&](std::size_t stage) {
          return static_cast<std::uint32_t>(chains.rank_of(stage));
        };
        ways.takers[maker] = {taker, rank_of(to), after};
        ways.makers[taker] = {maker, rank_of(s), after};
      }
    }
  }
  return ways;
}

Windows::Windows(const Ways& ways, double end)
    : ways_(&ways), slack_(end * kSlack), is_due_(ways.ranks.size(), 1) {
  for (const double time : ways.times) windows_.push_back({0.0, end - time});
  for (const RankStates& states : ways.ranks) steps_.push_back(states.steps());
}

std::size_t Windows::steps() const {
  std::size_t count = 0;
  for (const std::vector<Step>& each : steps_) count += each.size();
  return count;
}

void Windows::keep(std::size_t rank, const Step& step) {
  std::erase_if(steps_[rank],
                [&](const Step& each) { return each.from == step.from && each.to != step.to; });
  is_due_[rank] = 1;
}

void Windows::drop(std::size_t rank, const Step& step) {
  std::erase_if(steps_[rank],
                [&](const Step& each) { return each.from == step.from && each.to == step.to; });
  is_due_[rank] = 1;
}

bool Windows::narrow_all(Labour& labour) {
  for (int sweep = 0; sweep < kSweepsMax && std::ranges::count(is_due_, 1) > 0; ++sweep) {
    for (std::size_t rank = 0; rank < steps_.size(); ++rank) {
      if (is_due_[rank] == 0) continue;
      if (labour.stop()) return true;
      is_due_[rank] = 0;
      labour.steps += static_cast<std::int64_t>(steps_[rank].size());
      const std::size_t states = ways_->ranks[rank].count();
      if (!narrow(states, steps_[rank], ways_->times, slack_, windows_, labour.scratch)) {
        return false;
      }
      if (!hand_on(rank)) return false;
    }
  }
  return true;
}

bool Windows::hand_on(std::size_t rank) {
  const Chains& chains = ways_->problem->chains();
  for (const std::uint16_t stage : chains.stages_of(rank)) {
    for (const Kind kind : {Kind::Forward, Kind::Input}) {
      for (std::size_t m = 0; m < chains.microbatches(stage); ++m) {
        if (!hand_on(turn_id(chains, kind, stage, m))) return false;
      }
    }
  }
  return true;
}

bool Windows::hand_on(TurnId turn) {
  const Window& own = windows_[turn];
  if (const auto& taker = ways_->takers[turn]) {
    Window& other = windows_[taker->turn];
    const double first = own.first + taker->after;
    if (first > other.first + slack_) is_due_[taker->rank] = 1;
    other.first = std::max(other.first, first);
    if (other.first > other.last + slack_) return false;
  }
  if (const auto& maker = ways_->makers[turn]) {
    Window& other = windows_[maker->turn];
    const double last = own.last - maker->after;
    if (last < other.last - slack_) is_due_[maker->rank] = 1;
    other.last = std::min(other.last, last);
    if (other.first > other.last + slack_) return false;
  }
  return true;
}

}  // namespace penstock::search
