#include "penstock/plan/search/placement.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "penstock/schedule/generators/rows.h"

namespace penstock::search {
namespace {

using schedule::Op;
using simulate::LowerBound;

std::vector<Rank> placed(const Stages& stages, schedule::Placement stage_of) {
  std::vector<Rank> ranks(static_cast<std::size_t>(stages.ranks * stages.per_rank));
  for (std::int32_t rank = 0; rank < stages.ranks; ++rank) {
    for (std::int32_t chunk = 0; chunk < stages.per_rank; ++chunk) {
      ranks[stage_of(stages.ranks, rank, chunk).index()] = Rank(rank);
    }
  }
  return ranks;
}

// All that the ranks have to do, in no useful order.
schedule::Schedule actions_of(const Stages& stages, const std::vector<Rank>& rank_of_stage) {
  schedule::Schedule schedule{.name = "search",
                              .stages = stages.ranks * stages.per_rank,
                              .microbatches = stages.microbatches};
  schedule.programs.resize(static_cast<std::size_t>(stages.ranks));
  for (std::size_t s = 0; s < rank_of_stage.size(); ++s) {
    for (std::int32_t m = 0; m < stages.microbatches; ++m) {
      for (const Op op : {Op::Forward, Op::BackwardInput, Op::BackwardWeight}) {
        schedule.programs[rank_of_stage[s].index()].push_back(
            {.stage = StageId(s), .op = op, .microbatch = Microbatch(m)});
      }
    }
  }
  return schedule;
}

double bound(const Stages& stages, const std::vector<Rank>& rank_of_stage) {
  return highest(bounds_of(stages, rank_of_stage)).makespan;
}

// Hops that leave their rank; of placements with one bound, few are better.
std::size_t crossings(const std::vector<Rank>& ranks) {
  std::size_t count = 0;
  for (std::size_t s = 0; s + 1 < ranks.size(); ++s) count += ranks[s] != ranks[s + 1];
  return count;
}

struct Candidate {
  std::vector<Rank> ranks;
  double bound = 0.0;
  std::size_t crossings = 0;
  friend bool operator<(const Candidate& a, const Candidate& b) {
    return std::tie(a.bound, a.crossings, a.ranks) < std::tie(b.bound, b.crossings, b.ranks);
  }
};

Candidate candidate(const Stages& stages, std::vector<Rank> ranks) {
  const double bounded = bound(stages, ranks);
  const std::size_t hops = crossings(ranks);
  return {std::move(ranks), bounded, hops};
}

// Ranks by the order in which they first appear: their names do not matter.
std::vector<Rank> renumbered(const std::vector<Rank>& ranks, std::int32_t count) {
  std::vector<Rank> names(static_cast<std::size_t>(count), Rank(-1));
  std::vector<Rank> renamed;
  std::int32_t next = 0;
  for (const Rank rank : ranks) {
    Rank& name = names[rank.index()];
    if (name.value < 0) name = Rank(next++);
    renamed.push_back(name);
  }
  return renamed;
}

}  // namespace

simulate::Costs of_halves(const Stages& stages) {
  simulate::Costs costs = simulate::without_exchanges(stages.costs);
  if (!costs.backward) return costs;
  std::vector<std::vector<double>> input;
  std::vector<std::vector<double>> weight;
  for (std::int32_t s = 0; s < stages.ranks * stages.per_rank; ++s) {
    input.emplace_back();
    weight.emplace_back();
    for (std::int32_t m = 0; m < stages.microbatches; ++m) {
      const StageId stage(s);
      const Microbatch microbatch(m);
      const double whole = costs.backward->at(stage, microbatch);
      input.back().push_back(std::min(whole, costs.input.at(stage, microbatch)));
      weight.back().push_back(
          std::min(whole - input.back().back(), costs.weight.at(stage, microbatch)));
    }
  }
  costs.backward.reset();
  costs.input = verify::PerStage(std::move(input));
  costs.weight = verify::PerStage(std::move(weight));
  return costs;
}

std::string_view to_string(Placement placement) {
  switch (placement) {
    case Placement::Loop:
      return "loop";
    case Placement::V:
      return "v";
    case Placement::Any:
      return "any";
  }
  return "";
}

std::vector<double> Stages::limits() const {
  if (!memory_of_ranks.empty()) return memory_of_ranks;
  return std::vector<double>(static_cast<std::size_t>(ranks),
                             memory_max.value_or(std::numeric_limits<double>::infinity()));
}

std::vector<Rank> in_a_loop(const Stages& stages) { return placed(stages, schedule::in_a_loop); }

std::vector<Rank> to_and_fro(const Stages& stages) { return placed(stages, schedule::to_and_fro); }

std::vector<LowerBound> bounds_of(const Stages& stages, const std::vector<Rank>& rank_of_stage) {
  return lower_bounds({.actions = actions_of(stages, rank_of_stage),
                       .homes = rank_of_stage,
                       .memory_max = stages.limits()},
                      of_halves(stages));
}

std::optional<std::vector<std::vector<Rank>>> all_placements(const Stages& stages,
                                                             std::size_t most) {
  if (!stages.costs.links.empty()) return {};  // Ranks have names then.
  const auto count = static_cast<std::size_t>(stages.ranks * stages.per_rank);
  std::vector<std::vector<Rank>> placements = {{}};
  for (std::size_t s = 0; s < count; ++s) {
    std::vector<std::vector<Rank>> longer;
    for (const std::vector<Rank>& begun : placements) {
      std::vector<std::int32_t> held(static_cast<std::size_t>(stages.ranks));
      for (const Rank rank : begun) ++held[rank.index()];
      for (std::int32_t rank = 0; rank < stages.ranks; ++rank) {
        const std::int32_t holds = held[static_cast<std::size_t>(rank)];
        if (holds == stages.per_rank) continue;
        longer.push_back(begun);
        longer.back().emplace_back(rank);
        if (holds == 0) break;  // Ranks that hold nothing yet are alike.
      }
    }
    placements = std::move(longer);
    constexpr std::size_t kBegun = 8;  // Some are begun that have no end.
    if (placements.size() > kBegun * most) return {};
  }
  if (placements.size() > most) return {};
  return placements;
}

std::vector<std::vector<Rank>> with_small_bounds(const Stages& stages, std::size_t count,
                                                 std::uint64_t seed) {
  // Bounds cost as much as there are actions: a few million of them are a second.
  constexpr std::size_t kActions = 3'000'000;
  Stages fewer = stages;
  fewer.microbatches = std::min(stages.microbatches, 2 * stages.ranks);
  const std::vector<Rank> known[] = {in_a_loop(stages), to_and_fro(stages)};
  const std::size_t actions = 3 * known[0].size() * static_cast<std::size_t>(fewer.microbatches);
  const std::size_t tries = std::clamp<std::size_t>(kActions / actions, 50, 3000);

  Random random(seed);
  std::vector<Candidate> found;
  Candidate now = candidate(fewer, known[0]);
  for (std::size_t i = 0; i < tries; ++i) {
    if (i % (tries / 4 + 1) == 0) now = candidate(fewer, known[i / (tries / 4 + 1) % 2]);
    std::vector<Rank> ranks = now.ranks;
    do {
      std::swap(ranks[random.below(ranks.size())], ranks[random.below(ranks.size())]);
    } while (random.chance(0.5));
    Candidate next = candidate(fewer, renumbered(ranks, stages.ranks));
    if (now < next && !random.chance(0.02)) continue;
    now = std::move(next);
    found.push_back(now);
  }
  std::ranges::sort(found, std::less<>());
  std::vector<std::vector<Rank>> placements;
  for (Candidate& each : found) {
    if (placements.size() == count) break;
    const bool is_known = std::ranges::find(known, each.ranks) != std::end(known);
    const bool is_double = !placements.empty() && placements.back() == each.ranks;
    if (!is_known && !is_double) placements.push_back(std::move(each.ranks));
  }
  return placements;
}

// The k-th rank to start has to wait for k stages, each of which is on another rank; and the ranks
// share the work, of which each has at least that of the smallest stages.
LowerBound bound_of_any(const Stages& stages) {
  const simulate::Costs costs = of_halves(stages);
  const std::int32_t all = stages.ranks * stages.per_rank;
  std::vector<double> work;
  double total = 0.0;
  for (std::int32_t s = 0; s < all; ++s) {
    work.push_back(0.0);
    for (std::int32_t m = 0; m < stages.microbatches; ++m) {
      for (const Op op : {Op::Forward, Op::BackwardInput, Op::BackwardWeight}) {
        work.back() += costs.of({.stage = StageId(s), .op = op, .microbatch = Microbatch(m)});
      }
    }
    total += work.back();
  }
  double latency = costs.latency;
  for (const simulate::Link& link : costs.links) latency = std::min(latency, link.latency);
  double start = 0.0;
  double starts = 0.0;
  for (std::int32_t s = 0; s + 1 < stages.ranks; ++s) {
    double least = std::numeric_limits<double>::infinity();
    for (std::int32_t m = 0; m < stages.microbatches; ++m) {
      least = std::min(least, costs.forward.at(StageId(s), Microbatch(m)));
    }
    start += least + latency;
    starts += start;
  }
  std::ranges::sort(work);
  double smallest = 0.0;
  for (std::int32_t v = 0; v < stages.per_rank; ++v) smallest += work[static_cast<std::size_t>(v)];
  const double shared = (total + starts) / stages.ranks;
  return {.name = "placement",
          .meaning =
              "wherever the stages are, the last rank to start waits for a stage on each of "
              "the others, and no rank has less than its share of the work",
          .makespan = std::max(shared, start + smallest) + costs.optimizer};
}

}  // namespace penstock::search
