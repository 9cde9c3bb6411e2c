#include "penstock/search/variant.h"

#include <algorithm>
#include <utility>

namespace penstock::search {
namespace {

// Turns that are simulated in a piece of effort 1, in repairs and, some times slower, in blocks.
constexpr double kRepairTurns = 2e7;
constexpr double kBlockTurns = 6e5;
constexpr double kBlockEffort = 4.0;  // At most.

std::int64_t share(double turns, double effort, const Problem& problem) {
  return 20 + static_cast<std::int64_t>(turns * effort / static_cast<double>(problem.turns()));
}

Problem problem_of(const Stages& stages, const std::vector<Rank>& ranks,
                   std::int32_t microbatches) {
  return {ranks, stages.ranks, microbatches, stages.costs, stages.limits()};
}

// A block is as good on some microbatches more than there are ranks as on many.
std::int32_t few_microbatches(const Stages& stages) {
  return std::min(stages.microbatches, 2 * stages.ranks);
}

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
      bound_(highest(bounds_of(stages, rank_of_stage))) {}

// A makespan that only rounding tells from the bound.
double Variant::enough() const {
  return (bound_.makespan - stages_.costs.optimizer) * (1.0 + kRounding);
}

Finding Variant::run(const Piece& piece) const {
  switch (piece.kind) {
    case Piece::Kind::Begin:
      return begin(piece);
    case Piece::Kind::Tune:
      return tune(piece);
    case Piece::Kind::Repair:
      return repair(piece);
  }
  return {};
}

void Variant::learn(Finding finding) {
  if (finding.solution.better_than(best_)) best_ = std::move(finding.solution);
  if (finding.block && finding.block_cost < block_cost_) {
    block_ = std::move(finding.block);
    block_cost_ = finding.block_cost;
  }
}

Finding Variant::begin(const Piece& piece) const {
  Clock clock(problem_);
  Finding best = tune(piece);
  for (Order& order : generated_orders(problem_)) {
    const double cost = clock.run(order);
    Solution solution{std::move(order), clock.makespan(), cost};
    if (solution.better_than(best.solution)) best.solution = std::move(solution);
  }
  return best;
}

Finding Variant::tune(const Piece& piece) const {
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
      finish(order_of_block(problem_, tuning.block(), scheduler), tuning.simulated(), piece);
  found.block = tuning.block();
  found.block_cost = tuning.cost();
  return found;
}

Finding Variant::repair(const Piece& piece) const { return finish(best_.order, 0, piece); }

Finding Variant::finish(Order order, std::int64_t simulated, const Piece& piece) const {
  if (Clock(problem_).run(order) == kStuck) return {.simulated = simulated};
  Random random(piece.seed);
  Repair repair(problem_);
  const double heat = mean_time(problem_) * 0.25 * static_cast<double>(1U << random.below(4));
  Finding found{.solution =
                    repair.run(order, {.seed = piece.seed,
                                       .changes = share(kRepairTurns, piece.effort, problem_),
                                       .heat = heat,
                                       .enough = enough(),
                                       .stop = piece.stop})};
  found.simulated = simulated + repair.simulated();
  return found;
}

}  // namespace penstock::search
