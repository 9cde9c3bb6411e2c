#include "penstock/plan/search/seeds.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/plan/search/repair.h"
#include "penstock/schedule/generators/generators.h"

namespace penstock::search {
namespace {

bool all_fit(const Problem& problem, const Order& order) {
  return std::ranges::all_of(order, [&](const auto& turns) { return fits(problem, turns); });
}

// What one microbatch takes of the busiest rank.
double period_of(const Problem& problem) {
  double most = 0.0;
  for (std::size_t rank = 0; rank < problem.ranks(); ++rank) {
    double work = 0.0;
    for (const std::uint16_t stage : problem.stages_of(rank)) {
      for (std::size_t m = 0; m < problem.microbatches(); ++m) {
        for (const Kind kind : kEveryKind) {
          const SearchStep turn{stage, kind};
          work += problem.joined().hides() ? problem.joined().least_time(turn, m)
                                           : problem.time(turn, m);
        }
      }
    }
    most = std::max(most, work);
  }
  return most / static_cast<double>(problem.microbatches());
}

// The numbers of a block, by their places; behind them, for each pass of the ranks, how much slower
// its forwards and its inputs are; at the end, where turns are joined, when a W is, and how long a
// turn waits for company.
enum Gene : std::size_t { kWait, kInputFirst, kAhead, kPatience, kEarly, kTurn, kPasses };

std::size_t passes(const Problem& problem) {
  return (problem.stages() + problem.ranks() - 1) / problem.ranks();
}

double between(double low, double high, double gene) { return low + (high - low) * gene; }

}  // namespace

std::vector<Order> generated_orders(const Problem& problem) {
  std::vector<Order> orders;
  const auto ranks = static_cast<std::int32_t>(problem.ranks());
  const auto stages = static_cast<std::int32_t>(problem.stages());
  if (stages % ranks != 0) return orders;
  Clock clock(problem);
  for (const schedule::Generator& generator : schedule::registry()) {
    if (generator.purpose != schedule::Purpose::Train) continue;
    for (const schedule::Rule rule : {schedule::Rule::Published, schedule::Rule::Fitted}) {
      const schedule::Sizes sizes{.ranks = ranks,
                                  .stages_per_rank = stages / ranks,
                                  .microbatches = static_cast<std::int32_t>(problem.microbatches()),
                                  .rule = rule};
      if (!generator.objection(sizes).empty()) continue;
      auto order = problem.order_of(generator.make(sizes));
      if (!order || !all_fit(problem, *order) || clock.run(*order) == kStuck) continue;
      if (orders.empty() || *order != orders.back()) orders.push_back(std::move(*order));
    }
  }
  return orders;
}

Order joined_up(const Problem& problem, const Order& order) {
  return problem
      .order_of(schedule::overlap_pairs(schedule::fuse_backwards(problem.schedule_of(order))))
      .value();
}

Block random_block(const Problem& problem, Random& random) {
  Block block(kPasses + 2 * passes(problem) + (problem.joined().hides() ? 2 : 0));
  for (double& gene : block) gene = random.unit();
  return block;
}

Block changed(Block block, Random& random) {
  do {
    double& gene = block[random.below(block.size())];
    const double step = random.between(-0.5, 0.5);
    gene = random.chance(0.2) ? random.unit() : std::clamp(gene + step * step * step, 0.0, 1.0);
  } while (random.chance(0.5));
  return block;
}

Order order_of_block(const Problem& problem, const Block& block, ListScheduler& scheduler) {
  const std::size_t stages = problem.stages();
  const double period = period_of(problem);
  const auto time = [&](std::size_t stage, Kind kind) {
    const SearchStep turn{static_cast<std::uint16_t>(stage), kind};
    return problem.time(turn, 0) + problem.transit(turn, 0);
  };
  const auto slower = [&](std::size_t stage, std::size_t direction) {
    const std::size_t pass = stage / problem.ranks();
    return between(0.5, 2.5, block[kPasses + 2 * pass + direction]);
  };
  std::vector<double> forward(stages);
  std::vector<double> input(stages);
  double at = 0.0;
  for (std::size_t s = 0; s < stages; ++s) {
    forward[s] = at;
    at += slower(s, 0) * time(s, Kind::Forward);
  }
  at += between(0.0, 0.5 * period, block[kTurn]);
  for (std::size_t s = stages; s > 0; --s) {
    input[s - 1] = at;
    at += slower(s - 1, 1) * time(s - 1, Kind::Input);
  }
  const double input_first = between(-period, period, block[kInputFirst]);
  const double wait = 4.0 * period * block[kWait] * block[kWait];
  // Where F and I get ahead of W, some W are left for the end, when there is nothing else to do.
  constexpr double kGain = 0.15;
  const double ahead = std::max(0.0, between(-2.0, 6.0, block[kAhead])) * period;
  Targets targets(problem);
  for (std::size_t s = 0; s < stages; ++s) {
    const auto stage = static_cast<std::uint16_t>(s);
    for (std::size_t m = 0; m < problem.microbatches(); ++m) {
      const double later = static_cast<double>(m) * period;
      const double sooner = later - std::min(ahead, kGain * later);
      targets.of({stage, Kind::Forward}, m) = forward[s] + sooner;
      targets.of({stage, Kind::Input}, m) = input[s] - input_first + sooner;
      targets.of({stage, Kind::Weight}, m) = input[s] - input_first + wait + later;
    }
  }
  return scheduler.run(targets, {.patience = std::max(0.0, between(-0.5, 1.0, block[kPatience])),
                                 .early = between(0.0, 3.0, block[kEarly]) * period,
                                 .whole = between(-period, 2 * period, block.back()),
                                 .company = between(-0.5, 0.5, block[block.size() - 2])});
}

}  // namespace penstock::search
