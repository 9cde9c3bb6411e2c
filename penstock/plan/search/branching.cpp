#include "penstock/plan/search/branching.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <utility>

#include "penstock/plan/search/clock.h"
#include "penstock/plan/search/random.h"

namespace penstock::search {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Each choice keeps the steps that it had, to come back to: some hundred times as much memory.
constexpr std::size_t kStepsMax = 80'000;
// Struck out before it begins again, at first.
constexpr std::int64_t kStruckMax = 60;

// The earliest choice of a rank: neighbouring steps from one state.
struct Fork {
  std::size_t rank = 0;
  std::size_t first = 0;
  std::size_t count = 0;
  double start = kNever;  // The earliest one.
  double free = 0.0;      // When the rank is.
};

class Branching {
 public:
  Branching(const Ways& ways, std::int64_t struck_max, std::uint64_t seed, std::int64_t steps_max,
            Labour& labour)
      : ways_(ways),
        struck_max_(struck_max),
        random_(seed),
        steps_max_(steps_max),
        labour_(labour) {}

  Answer run(Windows windows) {
    while (true) {
      const Fork fork = earliest(windows);
      if (fork.count == 0) {
        found_ = std::move(windows);
        return Answer::Yes;
      }
      const Step step = chosen(windows, fork);
      Windows tried = windows;
      tried.keep(fork.rank, step);
      if (tried.narrow_all(labour_)) {
        const Answer answer = run(std::move(tried));
        if (answer != Answer::No) return answer;
      }
      if (++struck_ > struck_max_ || labour_.steps > steps_max_ || labour_.stop()) {
        return Answer::Open;
      }
      windows.drop(fork.rank, step);
      if (!windows.narrow_all(labour_)) return Answer::No;
    }
  }

  const Windows& found() const { return *found_; }

 private:
  Fork earliest(const Windows& windows) const {
    Fork earliest;
    for (std::size_t rank = 0; rank < ways_.ranks.size(); ++rank) {
      const Fork fork = first_of(windows, rank);
      if (fork.count == 0) continue;
      const bool is_sooner = fork.start < earliest.start * (1.0 - kRounding);
      const bool is_as_soon = fork.start <= earliest.start * (1.0 + kRounding);
      if (is_sooner || (is_as_soon && fork.count < earliest.count)) earliest = fork;
    }
    return earliest;
  }

  Fork first_of(const Windows& windows, std::size_t rank) const {
    const std::vector<Step>& steps = windows.steps(rank);
    Fork fork{.rank = rank};
    const auto start = [&](const Step& step) {
      return std::max(fork.free, windows.of(step.turn).first);
    };
    for (fork.first = 0; fork.first < steps.size(); ++fork.first) {
      std::size_t end = fork.first;
      while (end < steps.size() && steps[end].from == steps[fork.first].from) {
        fork.start = std::min(fork.start, start(steps[end++]));
      }
      fork.count = end - fork.first;
      if (fork.count > 1) return fork;
      fork.free = start(steps[fork.first]) + ways_.times[steps[fork.first].turn];
      fork.start = kNever;
    }
    fork.count = 0;
    return fork;
  }

  // The most urgent one of those that start before another one could be over.
  Step chosen(const Windows& windows, const Fork& fork) {
    const auto begin = windows.steps(fork.rank).begin() + static_cast<std::ptrdiff_t>(fork.first);
    const auto end = begin + static_cast<std::ptrdiff_t>(fork.count);
    const auto start = [&](const Step& step) {
      return std::max(fork.free, windows.of(step.turn).first);
    };
    double over = kNever;
    double time = 0.0;
    for (auto step = begin; step != end; ++step) {
      over = std::min(over, start(*step) + ways_.times[step->turn]);
      time = std::max(time, ways_.times[step->turn]);
    }
    auto best = begin;
    double most_urgent = kNever;
    for (auto step = begin; step != end; ++step) {
      if (start(*step) > fork.start && start(*step) >= over) continue;
      constexpr double kStartShare = 0.3, kLuck = 0.6;
      const double urgency =
          windows.of(step->turn).last + kStartShare * start(*step) + kLuck * time * random_.unit();
      if (urgency >= most_urgent) continue;
      most_urgent = urgency;
      best = step;
    }
    return *best;
  }

  const Ways& ways_;
  std::int64_t struck_max_;
  Random random_;
  std::int64_t steps_max_;
  Labour& labour_;
  std::int64_t struck_ = 0;
  std::optional<Windows> found_;
};

// The only order that is left.  Stages that share their W do them in the order of their I.
Order order_of(const Ways& ways, const Windows& windows) {
  const Problem& problem = *ways.problem;
  Order order(problem.ranks());
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    // Stages whose W is open, by time and size of the W.
    std::map<std::pair<double, double>, std::deque<std::uint16_t>> open;
    for (const Step& step : windows.steps(rank)) {
      SearchStep turn = ways.turns[step.turn];
      auto& stages =
          open[{problem.time({turn.stage, Kind::Weight}, 0), problem.size(turn.stage, 0)}];
      if (turn.kind == Kind::Input) stages.push_back(turn.stage);
      if (turn.kind == Kind::Weight) {
        turn.stage = stages.front();
        stages.pop_front();
      }
      order[rank].push_back(turn);
    }
  }
  return order;
}

}  // namespace

Attempt attempt(const Ways& ways, double end, const Patience& patience) {
  Labour labour{.stop = patience.stop};
  Windows windows(ways, end);
  if (!windows.narrow_all(labour)) return {.answer = Answer::No, .steps = labour.steps};
  Attempt result{.has_branched = true};
  std::uint64_t seed = patience.seed;
  std::int64_t struck = kStruckMax;
  while (windows.steps() <= kStepsMax && labour.steps < patience.steps && !patience.stop()) {
    Branching branching(ways, struck, seed++, patience.steps, labour);
    result.answer = branching.run(windows);
    if (result.answer == Answer::Yes) result.order = order_of(ways, branching.found());
    if (result.answer != Answer::Open) break;
    struck *= 2;
  }
  result.steps = labour.steps;
  return result;
}

bool has_equal_microbatches(const Problem& problem) {
  for (std::size_t s = 0; s < problem.stages(); ++s) {
    for (std::size_t m = 1; m < problem.chains().microbatches(s); ++m) {
      if (problem.size(s, m) != problem.size(s, 0)) return false;
      for (const Kind kind : kEveryKind) {
        const SearchStep turn{static_cast<std::uint16_t>(s), kind};
        const bool crosses = kind != Kind::Weight;
        if (problem.time(turn, m) != problem.time(turn, 0)) return false;
        if (crosses && problem.transit(turn, m) != problem.transit(turn, 0)) return false;
      }
    }
  }
  return true;
}

}  // namespace penstock::search
