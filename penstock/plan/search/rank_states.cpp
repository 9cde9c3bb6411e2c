#include "penstock/plan/search/rank_states.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include "penstock/plan/search/clock.h"

namespace penstock::search {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();

// A kind of turn of a stage, or the W of some stages together.
struct Series {
  Kind kind = Kind::Forward;
  std::vector<std::uint16_t> stages;
  std::size_t turns = 0;
  // Series whose count stays ahead of this one's, where the series is of one stage.
  std::optional<std::size_t> ahead = {};  // The same stage's: its F for an I.
  std::optional<std::size_t> giver = {};  // Another stage's of this rank.
  double size = 0.0;                      // Size of an activation.
};

// How many turns are done, by series, as the digits of a number.
class Rules {
 public:
  Rules(const Problem& problem, std::size_t rank) : problem_(problem) {
    for (const std::uint16_t stage : problem.stages_of(rank)) add_stage(stage);
    for (const std::uint16_t stage : problem.stages_of(rank)) add_weights(stage);
    for (const Series& each : series_) {
      place_.push_back(span_);
      const std::uint64_t digits = each.turns + 1;
      is_too_large_ |= span_ > std::numeric_limits<std::uint64_t>::max() / digits;
      span_ *= digits;
    }
  }

  bool are_too_large() const { return is_too_large_; }
  const std::vector<Series>& series() const { return series_; }
  std::uint64_t place(std::size_t at) const { return place_[at]; }
  std::size_t done(std::uint64_t state, std::size_t at) const {
    return static_cast<std::size_t>(state / place_[at] % (series_[at].turns + 1));
  }

  bool may_do(std::uint64_t state, std::size_t at) const {
    const Series& series = series_[at];
    const std::size_t next = done(state, at);
    if (next == series.turns) return false;
    if (series.ahead && next >= done(state, *series.ahead)) return false;
    if (series.giver && next >= done(state, *series.giver)) return false;
    if (series.kind == Kind::Weight) return next < inputs_of(state, series);
    return series.kind == Kind::Input || has_room(state, series.size);
  }

  TurnId turn(std::uint64_t state, std::size_t at) const {
    const Series& series = series_[at];
    const std::size_t each = series.turns / series.stages.size();
    const std::size_t next = done(state, at);
    return turn_id(problem_.chains(), series.kind, series.stages[next / each], next % each);
  }

 private:
  // Adds the two series of stage k: 2k and 2k + 1.
  void add_stage(std::uint16_t stage) {
    const std::size_t at = series_.size();
    const Chains& chains = problem_.chains();
    const bool follows = at > 0 && series_[at - 1].stages.front() / chains.stages_per_chain() ==
                                       stage / chains.stages_per_chain();
    Series forward{.kind = Kind::Forward,
                   .stages = {stage},
                   .turns = chains.microbatches(stage),
                   .size = problem_.size(stage, 0)};
    Series input = forward;
    input.kind = Kind::Input;
    input.ahead = at;
    if (follows) {
      forward.giver = at - 2;
      series_[at - 1].giver = at + 1;
    }
    series_.push_back(std::move(forward));
    series_.push_back(std::move(input));
  }

  void add_weights(std::uint16_t stage) {
    const auto time = [&](std::uint16_t of) { return problem_.time({of, Kind::Weight}, 0); };
    const double size = problem_.size(stage, 0);
    const std::size_t turns = problem_.chains().microbatches(stage);
    const auto alike = std::ranges::find_if(series_, [&](const Series& each) {
      return each.kind == Kind::Weight && each.size == size &&
             time(each.stages.front()) == time(stage) &&
             problem_.chains().microbatches(each.stages.front()) == turns;
    });
    if (alike == series_.end()) {
      series_.push_back({.kind = Kind::Weight, .stages = {stage}, .turns = turns, .size = size});
    } else {
      alike->stages.push_back(stage);
      alike->turns += turns;
    }
  }

  std::size_t inputs_of(std::uint64_t state, const Series& weights) const {
    std::size_t count = 0;
    for (std::size_t at = 1; at < series_.size() && series_[at].kind == Kind::Input; at += 2) {
      const std::uint16_t stage = series_[at].stages.front();
      if (std::ranges::find(weights.stages, stage) != weights.stages.end())
        count += done(state, at);
    }
    return count;
  }

  bool has_room(std::uint64_t state, double size) const {
    if (problem_.memory_max() == kUnbounded) return true;
    double held = size;
    for (std::size_t at = 0; at < series_.size(); ++at) {
      const Series& each = series_[at];
      const double share = each.kind == Kind::Forward ? 1.0
                           : each.kind == Kind::Input ? problem_.keep() - 1.0
                                                      : -problem_.keep();
      held += share * each.size * static_cast<double>(done(state, at));
    }
    return held <= problem_.memory_max() * (1.0 + kRounding);
  }

  const Problem& problem_;
  std::vector<Series> series_;
  std::vector<std::uint64_t> place_;
  std::uint64_t span_ = 1;
  bool is_too_large_ = false;
};

}  // namespace

std::optional<RankStates> RankStates::of(const Problem& problem, std::size_t rank,
                                         std::size_t steps_max) {
  const Rules rules(problem, rank);
  if (rules.are_too_large()) return {};
  RankStates states;
  std::vector<std::uint64_t> layer = {0};
  const std::size_t turns = kKinds * problem.chains().cells_of(rank);
  std::uint32_t first = 0;  // First state of the layer.
  for (std::size_t depth = 0; depth < turns; ++depth) {
    std::vector<std::uint64_t> next;
    std::unordered_map<std::uint64_t, std::uint32_t> known;
    const auto after = static_cast<std::uint32_t>(first + layer.size());
    for (std::uint32_t i = 0; i < layer.size(); ++i) {
      for (std::size_t at = 0; at < rules.series().size(); ++at) {
        if (!rules.may_do(layer[i], at)) continue;
        const std::uint64_t to = layer[i] + rules.place(at);
        const auto [found, is_new] =
            known.try_emplace(to, after + static_cast<std::uint32_t>(next.size()));
        if (is_new) next.push_back(to);
        states.steps_.push_back({first + i, found->second, rules.turn(layer[i], at)});
      }
      if (states.steps_.size() > steps_max) return {};
    }
    first = after;
    layer = std::move(next);
  }
  states.count_ = first + layer.size();
  return states;
}

bool narrow(std::size_t states, std::vector<Step>& steps, std::span<const double> times,
            double slack, std::vector<Window>& windows, Scratch& scratch) {
  auto& [reached, left, found] = scratch;
  reached.assign(states, kUnbounded);
  left.assign(states, -kUnbounded);
  found.resize(windows.size());
  reached.front() = 0.0;
  left.back() = kUnbounded;
  for (const Step& step : steps) {
    const Window& window = windows[step.turn];
    const double start = std::max(reached[step.from], window.first);
    found[step.turn] = {kUnbounded, -kUnbounded};
    if (start > window.last + slack) continue;
    reached[step.to] = std::min(reached[step.to], start + times[step.turn]);
  }
  if (reached.back() == kUnbounded) return false;
  for (std::size_t i = steps.size(); i > 0; --i) {
    Step& step = steps[i - 1];
    const Window& window = windows[step.turn];
    const double first = std::max(reached[step.from], window.first);
    const double last = std::min(left[step.to] - times[step.turn], window.last);
    if (first > last + slack) {
      step.to = 0;  // No step leads to the first state: it is dropped below.
      continue;
    }
    left[step.from] = std::max(left[step.from], last);
    Window& starts = found[step.turn];
    starts = {std::min(starts.first, first), std::max(starts.last, last)};
  }
  for (const Step& step : steps) windows[step.turn] = found[step.turn];
  std::erase_if(steps, [](const Step& step) { return step.to == 0; });
  return left.front() != -kUnbounded;
}

}  // namespace penstock::search
