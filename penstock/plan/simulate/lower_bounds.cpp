#include "penstock/plan/simulate/lower_bounds.h"

#include <algorithm>
#include <limits>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/simulate/links.h"
#include "penstock/plan/verify/live_activations.h"

namespace penstock::simulate {
namespace {

using schedule::Action;
using schedule::Op;
using schedule::Program;
using schedule::Purpose;
using schedule::Schedule;

constexpr double kNever = std::numeric_limits<double>::infinity();

// The least that any microbatch takes.
struct StageLeast {
  double forward = kNever;
  double gradient = kNever;     // B or I
  double to_next = 0.0;         // Transit of an activation.
  double to_previous = 0.0;     // Transit of a gradient.
  bool may_end_with_w = false;  // Some backward is split.
};

// When things can happen at a stage at the earliest, whatever the order.
struct StageTimes {
  double first_forward = 0.0;   // Starts.
  double first_backward = 0.0;  // Starts: the first microbatch has passed all later stages, twice.
  double tail = 0.0;            // Time from the last output to the end of the step, on other ranks.
};

struct RankWork {
  double all = 0.0;
  double forwards = 0.0;
  double forward_per_memory = 0.0;  // The most time of an F for the memory that it takes.
  double held = 0.0;                // Memory times the least time that it is held, over all.
  double memory_max = kNever;
};

class Bounds {
 public:
  Bounds(const Work& of, const Costs& costs)
      : of_(of),
        schedule_(of.actions),
        costs_(costs),
        hops_(schedule_, of.homes),
        links_(costs, hops_),
        least_(static_cast<std::size_t>(schedule_.stages)),
        times_(least_.size()),
        path_(static_cast<std::size_t>(schedule_.microbatches), 0.0) {
    find_share();
    find_least();
    find_transits();
    find_times();
    find_earliest();
    for (const Program& program : schedule_.programs) work_.push_back(work_of(program));
    for (std::size_t rank = 0; rank < work_.size(); ++rank) {
      work_[rank].memory_max = of.memory_max[rank];
    }
  }

  double work() const { return std::ranges::max(work_, {}, &RankWork::all).all; }

  // Rank by rank: it waits for its first input, works, and its last output passes the other ranks.
  double pipe() const {
    return most([&](std::size_t rank) {
      return earliest_[rank].first_forward + work_[rank].all + earliest_[rank].tail;
    });
  }

  double path() const { return *std::ranges::max_element(path_); }

  // The bound by memory before the first backward: a rank can run no more forwards there than it
  // has memory for.  All the rest comes after.
  double warm_up() const {
    return most([&](std::size_t rank) {
      const RankWork& work = work_[rank];
      const double before = std::min(work.forwards, work.memory_max * work.forward_per_memory);
      return earliest_[rank].first_backward + work.all - before + earliest_[rank].tail;
    });
  }

  // Little's law: what is held over the time that it is held fits the most that is held at once.
  double memory() const {
    return most([&](std::size_t rank) {
      const RankWork& work = work_[rank];
      if (work.memory_max == 0.0) return 0.0;
      return earliest_[rank].first_forward + work.held / work.memory_max + earliest_[rank].tail;
    });
  }

 private:
  template <class Bound>
  double most(const Bound& bound) const {
    double value = 0.0;
    for (std::size_t rank = 0; rank < work_.size(); ++rank) value = std::max(value, bound(rank));
    return value;
  }

  // An overlapped pair takes a share of its F and backward, so no less than that share of either,
  // and may hide all of their exchanges.
  void find_share() {
    for (const Program& program : schedule_.programs) {
      if (!std::ranges::any_of(program, &Action::overlaps_next)) continue;
      share_ = std::min(1.0, costs_.overlap);
      hides_ = true;
    }
  }

  double time(const Action& action) const {
    return share_ * (costs_.of(action) - (hides_ ? costs_.exchange_of(action) : 0.0));
  }

  static bool makes_gradient(Op op) { return op == Op::Backward || op == Op::BackwardInput; }

  void find_least() {
    for (const Program& program : schedule_.programs) {
      for (const Action& action : program) {
        if (schedule::is_compute(action.op)) find_least(action);
      }
    }
  }

  void find_least(const Action& action) {
    StageLeast& least = least_[action.stage.index()];
    if (action.op == Op::Forward) least.forward = std::min(least.forward, time(action));
    if (makes_gradient(action.op)) least.gradient = std::min(least.gradient, time(action));
    if (action.op == Op::BackwardWeight) least.may_end_with_w = true;
    // The way of a microbatch ends with the first stage's B or W.
    if (action.op == Op::BackwardWeight && action.stage != StageId(0)) return;
    path_[action.microbatch->index()] += time(action);
  }

  void find_transits() {
    const auto microbatches = static_cast<HopId>(schedule_.microbatches);
    const auto stages = static_cast<HopId>(schedule_.stages);
    const HopId hops = schedule_.purpose == Purpose::Train ? 2 * stages : stages;
    // Hops of the first way; other ways have the same hops with other ranks.
    for (HopId hop = 0; hop < hops; ++hop) {
      double least = kNever;
      for (HopId m = 0; m < microbatches; ++m) {
        const HopId message = hop * microbatches + m;
        const HopId own = hops_.hop_of(message);
        const double transit =
            hops_[own].crosses() ? links_.latency(own) + links_.transfer(message) : 0.0;
        least = std::min(least, transit);
        path_[m] += transit;
      }
      (hop < stages ? least_[hop].to_next : least_[hop - stages].to_previous) = least;
    }
  }

  void find_times() {
    const std::size_t stages = least_.size();
    for (std::size_t s = 0; s + 1 < stages; ++s) {
      times_[s + 1].first_forward = times_[s].first_forward + least_[s].forward + least_[s].to_next;
    }
    const double turn = times_.back().first_forward + least_.back().forward;
    if (schedule_.purpose == Purpose::Forward) {
      for (std::size_t s = 0; s < stages; ++s) {
        times_[s].tail = turn - times_[s].first_forward - least_[s].forward;
      }
      return;
    }
    times_.back().first_backward = turn;
    for (std::size_t s = stages - 1; s > 0; --s) {
      times_[s - 1].first_backward =
          times_[s].first_backward + least_[s].gradient + least_[s].to_previous;
    }
    double below = 0.0;
    for (std::size_t s = 0; s < stages; ++s) {
      if (s > 0) below += least_[s].to_previous + least_[s - 1].gradient;
      times_[s].tail = least_[s].may_end_with_w ? 0.0 : below;
    }
  }

  void find_earliest() {
    earliest_.assign(schedule_.programs.size(), {kNever, kNever, kNever});
    for (std::size_t at = 0; at < of_.homes.ways() * times_.size(); ++at) {
      const std::size_t s = at % times_.size();
      StageTimes& rank = earliest_[of_.homes.on_way(at / times_.size(), s).index()];
      rank.first_forward = std::min(rank.first_forward, times_[s].first_forward);
      rank.first_backward = std::min(rank.first_backward, times_[s].first_backward);
      rank.tail = std::min(rank.tail, times_[s].tail);
    }
  }

  RankWork work_of(const Program& program) const {
    RankWork work;
    for (const Action& action : program) {
      if (!schedule::is_compute(action.op)) continue;
      work.all += time(action);
      const double size = costs_.activation.at(action.stage, *action.microbatch);
      if (action.op == Op::Forward) {
        const double forward = time(action);
        work.forwards += forward;
        work.forward_per_memory =
            std::max(work.forward_per_memory, size > 0.0 ? forward / size : kNever);
        const StageTimes& times = times_[action.stage.index()];
        const double away =
            times.first_backward - times.first_forward - least_[action.stage.index()].forward;
        work.held += size * (time(action) + away);
      } else {
        const double kept = action.op == Op::BackwardWeight ? costs_.keep : 1.0;
        work.held += size * kept * time(action);
      }
    }
    return work;
  }

  const Work& of_;
  const Schedule& schedule_;
  const Costs& costs_;
  verify::Hops hops_;
  Links links_;
  double share_ = 1.0;
  bool hides_ = false;
  std::vector<StageLeast> least_;
  std::vector<StageTimes> times_;
  std::vector<StageTimes> earliest_;  // Least times of each rank's stages.
  std::vector<double> path_;          // Path of each microbatch through all stages, and back.
  std::vector<RankWork> work_;
};

// The most that each rank's activations take.
std::vector<double> peaks_of(const Schedule& schedule, const Costs& costs) {
  std::vector<double> peaks;
  for (const Program& program : schedule.programs) {
    verify::LiveActivations live(schedule.purpose, costs.activation, costs.keep);
    for (const Action& action : program) {
      live.start(action);
      live.end(action);
    }
    peaks.push_back(live.peak_memory());
  }
  return peaks;
}

}  // namespace

std::vector<LowerBound> lower_bounds(const Work& work, const Costs& costs) {
  const Bounds of(work, costs);
  std::vector<LowerBound> bounds = {
      {"work", "the busiest rank computes without a pause", of.work()},
      {"pipe",
       "a rank waits for its first input, computes without a pause, and its last output has to "
       "pass "
       "the other ranks",
       of.pipe()},
      {"path", "one microbatch passes all stages, and back", of.path()}};
  if (work.actions.purpose == Purpose::Train) {
    bounds.push_back({"warm-up",
                      "until its first gradient comes back, a rank can run only the forwards that "
                      "its memory holds",
                      of.warm_up()});
    bounds.push_back({"memory",
                      "activations are held while their microbatch is on its way through the later "
                      "stages, and a rank holds no more of them at once",
                      of.memory()});
  }
  for (LowerBound& bound : bounds) bound.makespan += costs.optimizer;
  return bounds;
}

std::vector<LowerBound> lower_bounds(const verify::VerifiedSchedule& verified, const Costs& costs) {
  const auto texts = misfits(costs, verified.schedule());
  if (!texts.empty()) throw ConfigError("costs: " + join(texts, "\ncosts: "));
  return lower_bounds({.actions = verified.schedule(),
                       .homes = verified.facts().homes,
                       .memory_max = peaks_of(verified.schedule(), costs)},
                      costs);
}

const LowerBound& highest(const std::vector<LowerBound>& bounds) {
  return *std::ranges::max_element(bounds, {}, &LowerBound::makespan);
}

}  // namespace penstock::simulate
