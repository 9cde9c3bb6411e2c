#include "penstock/plan/search/variant.h"

#include <algorithm>
#include <utility>

namespace penstock::search {
namespace {

using simulate::LowerBound;

// Turns that are simulated in a piece of effort 1, in repairs and, some times slower, in blocks.
constexpr double kRepairTurns = 2e7;
constexpr double kBlockTurns = 6e5;
constexpr double kBlockEffort = 4.0;  // At most.

std::int64_t share(double turns, double effort, const Problem& problem) {
  return 20 + static_cast<std::int64_t>(turns * effort / static_cast<double>(problem.turns()));
}

// Steps that a piece of effort 1 looks at to prove something, and what ranks may have of them: at
// the beginning, when every placement has its turn, and later.
constexpr double kProveSteps = 4e7;
constexpr std::size_t kStepsAtFirst = 200'000;
constexpr std::size_t kVariantStepsMax = 8'000'000;
// Bounds are raised at the beginning until this is all that is left in doubt.
constexpr double kDoubt = 0.001;

Problem problem_of(const Stages& stages, const std::vector<Rank>& ranks,
                   std::int32_t microbatches) {
  return {ranks, stages.ranks, microbatches, stages.costs, stages.limits()};
}

Problem problem_of_halves(const Stages& stages, const std::vector<Rank>& ranks) {
  return {ranks, stages.ranks, stages.microbatches, of_halves(stages), stages.memory_max};
}

// A block is as good on some microbatches more than there are ranks as on many.
std::int32_t few_microbatches(const Stages& stages) {
  return std::min(stages.microbatches, 2 * stages.ranks);
}

// An end at which an order of this makespan is too slow, by more than rounding.
double just_below(double makespan) { return makespan * (1.0 - 0.5 * kRounding); }

// What a turn takes, on average.
double mean_time(const Problem& problem) {
  double sum = 0.0;
  for (std::size_t s = 0; s < problem.stages(); ++s) {
    for (std::size_t m = 0; m < problem.microbatches(); ++m) {
      for (const Kind kind : kEveryKind) {
        sum += problem.time({static_cast<std::uint16_t>(s), kind}, m);
      }
    }
  }
  return sum / static_cast<double>(problem.turns());
}

// The best of some blocks, and then of changes of it.
class Tuning {
 public:
  Tuning(const Problem& problem, std::uint64_t seed)
      : problem_(problem), scheduler_(problem), clock_(problem), random_(seed) {}

  void start_with(const Block& block, double cost) {
    block_ = block;
    cost_ = cost;
  }
  void try_new(std::int64_t count, const std::function<bool()>& stop) {
    for (std::int64_t i = 0; i < count && (i == 0 || !stop()); ++i) {
      offer(random_block(problem_, random_));
    }
  }
  void try_changes(std::int64_t count, const std::function<bool()>& stop) {
    for (std::int64_t i = 0; i < count && !stop(); ++i) offer(changed(block_, random_));
  }

  const Block& block() const { return block_; }
  double cost() const { return cost_; }
  std::int64_t simulated() const { return simulated_; }

 private:
  void offer(Block block) {
    ++simulated_;
    const double cost = clock_.run(order_of_block(problem_, block, scheduler_), cost_);
    if (block_.empty() || cost <= cost_) {
      block_ = std::move(block);
      cost_ = cost;
    }
  }

  const Problem& problem_;
  ListScheduler scheduler_;
  Clock clock_;
  Random random_;
  Block block_;
  double cost_ = kStuck;
  std::int64_t simulated_ = 0;
};

}  // namespace

Variant::Variant(const Stages& stages, Placement placement, std::vector<Rank> rank_of_stage)
    : stages_(stages),
      placement_(placement),
      problem_(problem_of(stages, rank_of_stage, stages.microbatches)),
      fewer_(problem_of(stages, rank_of_stage, few_microbatches(stages))),
      halves_(problem_of_halves(stages, rank_of_stage)),
      bound_(highest(bounds_of(stages, rank_of_stage))),
      can_prove_(has_equal_microbatches(halves_)) {}

// A makespan that only rounding tells from the bound.
double Variant::enough(const LowerBound& bound) const {
  return (bound.makespan - stages_.costs.optimizer) * (1.0 + kRounding);
}

LowerBound Variant::proven(double end, bool has_branched) const {
  const double makespan = end + stages_.costs.optimizer;
  if (!has_branched) {
    return {"windows",
            "each rank's orders and memory leave its turns a window of time, windows of ranks "
            "that wait for each other narrow each other, and any sooner some window is empty",
            makespan};
  }
  return {"branching", "every order that could be sooner was tried, or struck out with its like",
          makespan};
}

Finding Variant::run(const Piece& piece) const {
  switch (piece.kind) {
    case Piece::Kind::Begin:
      return begin(piece);
    case Piece::Kind::Tune:
      return tune(piece, bound_);
    case Piece::Kind::Repair:
      return repair(piece);
    case Piece::Kind::Prove:
      return prove(piece);
  }
  return {};
}

void Variant::learn(Finding finding) {
  if (finding.bound && finding.bound->makespan > bound_.makespan) bound_ = *finding.bound;
  if (finding.ways) ways_ = std::move(finding.ways);
  if (finding.has_given_up) can_prove_ = false;
  if (finding.solution.better_than(best_)) best_ = std::move(finding.solution);
  if (finding.block && finding.block_cost < block_cost_) {
    block_ = std::move(finding.block);
    block_cost_ = finding.block_cost;
  }
}

Finding Variant::begin(const Piece& piece) const {
  Finding first;
  std::vector<Order> orders = generated_orders(problem_);
  ListScheduler scheduler(problem_);
  Random random(piece.seed);
  if (problem_.joined().hides()) {
    for (std::size_t i = orders.size(); i-- > 0;) orders.push_back(joined_up(problem_, orders[i]));
  }
  orders.push_back(order_of_block(problem_, random_block(problem_, random), scheduler));
  Clock clock(problem_);
  for (Order& order : orders) {
    const double cost = clock.run(order);
    Solution solution{std::move(order), clock.makespan(), cost};
    if (solution.better_than(first.solution)) first.solution = std::move(solution);
  }
  raise_bound(first);
  const LowerBound& bound = first.bound ? *first.bound : bound_;
  if (first.solution.makespan <= enough(bound)) return first;
  Finding best = tune(piece, bound);
  if (first.solution.better_than(best.solution)) best.solution = std::move(first.solution);
  best.bound = first.bound;
  return best;
}

// Raises the bound as far as windows alone do it.
void Variant::raise_bound(Finding& finding) const {
  if (!can_prove_ || finding.solution.makespan <= enough(bound_)) return;
  const auto ways = Ways::of(halves_, kStepsAtFirst);
  if (!ways) return;
  double low = bound_.makespan - stages_.costs.optimizer;
  double high = finding.solution.makespan;
  double end = just_below(high);
  while (high - low > kDoubt * low) {
    if (attempt(*ways, end, {}).answer == Answer::No) {
      low = end == just_below(high) ? high : end;
      finding.bound = proven(low, false);
    } else {
      high = end;
    }
    end = (low + high) / 2.0;
  }
}

// Tries to beat the best order, or to show that less than it cannot be.
Finding Variant::prove(const Piece& piece) const {
  Finding finding{.ways = ways_};
  if (!finding.ways) {
    auto ways = Ways::of(halves_, kVariantStepsMax);
    if (!ways) return {.has_given_up = true};
    finding.ways = std::make_shared<const Ways>(std::move(*ways));
  }
  Random random(piece.seed);
  const double high = std::min(best_.makespan, piece.best);
  double low = bound_.makespan - stages_.costs.optimizer;
  std::int64_t steps = 0;
  bool is_first = true;
  while (low < high && static_cast<double>(steps) < kProveSteps * piece.effort && !piece.stop()) {
    double share = 1.0;
    while (!is_first && share > kDoubt && random.chance(0.5)) share /= 2.0;
    is_first = false;
    const double end = share == 1.0 ? just_below(high) : low + share * (high - low);
    const auto left = static_cast<std::int64_t>(kProveSteps * piece.effort) - steps;
    const Attempt now =
        attempt(*finding.ways, end, {.seed = random.next(), .steps = left, .stop = piece.stop});
    steps += now.steps;
    if (now.answer == Answer::No) {
      low = share == 1.0 ? high : end;
      finding.bound = proven(low, now.has_branched);
    } else if (now.answer == Answer::Yes) {
      const Finding better = finish(*now.order, finding.simulated, piece, bound_);
      finding.solution = better.solution;
      finding.simulated = better.simulated;
      return finding;
    }
  }
  return finding;
}

Finding Variant::tune(const Piece& piece, const LowerBound& bound) const {
  Tuning tuning(fewer_, piece.seed);
  const std::int64_t count = share(kBlockTurns, std::min(piece.effort, kBlockEffort), fewer_);
  if (block_ && piece.seed % 2 == 0) {
    tuning.start_with(*block_, block_cost_);
  } else {
    tuning.try_new(count / 2, piece.stop);
  }
  tuning.try_changes(count, piece.stop);
  ListScheduler scheduler(problem_);
  Finding found =
      finish(order_of_block(problem_, tuning.block(), scheduler), tuning.simulated(), piece, bound);
  found.block = tuning.block();
  found.block_cost = tuning.cost();
  return found;
}

Finding Variant::repair(const Piece& piece) const { return finish(best_.order, 0, piece, bound_); }

Finding Variant::finish(const Order& order, std::int64_t simulated, const Piece& piece,
                        const LowerBound& bound) const {
  if (Clock(problem_).run(order) == kStuck) return {.simulated = simulated};
  Random random(piece.seed);
  Repair repair(problem_);
  const double heat = mean_time(problem_) * 0.25 * static_cast<double>(1U << random.below(4));
  Finding found{.solution =
                    repair.run(order, {.seed = piece.seed,
                                       .changes = share(kRepairTurns, piece.effort, problem_),
                                       .heat = heat,
                                       .enough = enough(bound),
                                       .stop = piece.stop})};
  found.simulated = simulated + repair.simulated();
  return found;
}

}  // namespace penstock::search
