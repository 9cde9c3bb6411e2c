#include "penstock/plan/search/reroute.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "penstock/core/text.h"
#include "penstock/plan/schedule/homes.h"
#include "penstock/plan/search/list_schedule.h"
#include "penstock/plan/search/problem.h"
#include "penstock/plan/search/repair.h"
#include "penstock/plan/search/search.h"
#include "penstock/plan/search/seeds.h"
#include "penstock/plan/search/whole_backwards.h"
#include "penstock/plan/simulate/lower_bounds.h"

namespace penstock::search {
namespace {

using schedule::Op;
using schedule::Schedule;
using simulate::Costs;

constexpr std::int64_t kReroutedTurnsMax = 4'000'000;
constexpr double kReroutingTurns = 1e7;  // Turns that are simulated in one run of repairs.
constexpr std::uint64_t kRepairs = 4;

std::int32_t pipe_ranks(const LostRanks& loss) { return loss.schedule.schedule().ranks(); }

std::int32_t ranks_of(const LostRanks& loss) { return mesh_of(loss).world_size(); }

// The ranks of all replicas at each place of the pipe.
std::vector<std::vector<Rank>> rows_of(const LostRanks& loss) {
  const mesh::Mesh mesh = mesh_of(loss);
  std::vector<std::vector<Rank>> rows;
  for (const Rank first : mesh.group(Rank(0), mesh::Role::Pipe)) {
    rows.push_back(mesh.group(first, mesh::Role::OtherSamples));
  }
  return rows;
}

bool is_lost(const LostRanks& loss, Rank rank) { return std::ranges::count(loss.lost, rank) > 0; }

bool is_by_microbatch(const Costs& costs) {
  return std::ranges::any_of(simulate::numbers_of_order(costs), [](const auto* numbers) {
    return std::ranges::any_of(numbers->rows(), [](const auto& row) { return row.size() > 1; });
  });
}

void check_ranks(const LostRanks& loss, std::vector<std::string>& texts) {
  if (loss.replicas < 2) {
    texts.push_back(str("replicas ", loss.replicas,
                        ": expected 2 or more; nobody else has the stages of a single one"));
    return;
  }
  if (loss.lost.empty()) texts.emplace_back("no rank is lost: name one or more");
  const std::int32_t ranks = ranks_of(loss);
  for (const Rank rank : loss.lost) {
    if (rank.value < 0 || rank.value >= ranks) {
      texts.push_back(str("lost rank ", rank, ": expected a rank from 0 to ", ranks - 1, ": ",
                          pipe_ranks(loss), " ranks of the pipe x ", loss.replicas, " replicas"));
    } else if (std::ranges::count(loss.lost, rank) > 1) {
      texts.push_back(str("lost rank ", rank, " is named twice"));
      return;
    }
  }
}

void check(const LostRanks& loss) {
  const Schedule& schedule = loss.schedule.schedule();
  std::vector<std::string> texts;
  check_ranks(loss, texts);
  if (schedule.purpose != schedule::Purpose::Train) {
    texts.push_back(str(title(schedule), " has no backwards: a step that trains is expected"));
  }
  if (schedule.replicas > 1) {
    texts.push_back(str(title(schedule), ": expected the schedule of one replica"));
  }
  if (is_by_microbatch(loss.costs)) {
    texts.emplace_back(
        "costs by microbatch: a replica gets other microbatches; expected a number, "
        "or one per stage");
  }
  const std::int64_t stages = 2 * std::int64_t{loss.replicas} * schedule.stages;
  const std::int64_t turns = 3 * stages / 2 * schedule.microbatches;
  if (loss.replicas > 1 && (stages > std::int64_t{kStagesMax} || turns > kReroutedTurnsMax)) {
    texts.push_back(str(title(schedule), " x ", loss.replicas, " replicas: at most ",
                        kReroutedTurnsMax / 3, " stages x microbatches x replicas are rerouted"));
  }
  for (const std::string& text : simulate::misfits(loss.costs, schedule)) {
    texts.push_back("costs: " + text);
  }
  if (!texts.empty()) throw ConfigError("reroute: " + join(texts, "\nreroute: "));
}

// When each F, B or I, and W of the loss's schedule starts: what the orders to begin with strive
// for.
class Times {
 public:
  explicit Times(const LostRanks& loss) : microbatches_(microbatches(loss)) {
    const auto stages = static_cast<std::size_t>(loss.schedule.schedule().stages);
    for (auto& starts : starts_) starts.resize(stages * microbatches_);
    const auto simulation = simulate::simulate(loss.schedule, loss.costs);
    for (const simulate::Event& event : simulation.events) {
      const std::size_t at =
          event.action.stage.index() * microbatches_ + event.action.microbatch->index();
      if (event.action.op == Op::Forward) {
        starts_[0][at] = event.start;
      } else if (event.action.op == Op::BackwardWeight) {
        starts_[2][at] = event.start;
      } else {
        starts_[1][at] = starts_[2][at] = event.start;
      }
    }
    period_ = std::ranges::max(simulation.busy) / static_cast<double>(microbatches_);
    makespan_ = simulation.makespan;
  }

  // More microbatches than the schedule has follow it in the same time.
  double start(Kind kind, std::size_t stage, std::size_t microbatch) const {
    const std::size_t last = microbatches_ - 1;
    const double late = period_ * static_cast<double>(microbatch - std::min(microbatch, last));
    return late + starts_[static_cast<std::size_t>(kind)]
                         [stage * microbatches_ + std::min(microbatch, last)];
  }
  double period() const { return period_; }
  double makespan() const { return makespan_; }

 private:
  static std::size_t microbatches(const LostRanks& loss) {
    return static_cast<std::size_t>(loss.schedule.schedule().microbatches);
  }

  std::size_t microbatches_;
  std::array<std::vector<double>, kKinds> starts_;
  double period_ = 0.0;
  double makespan_ = 0.0;
};

double memory_of(const LostRanks& loss) {
  if (loss.memory_max) return *loss.memory_max;
  return std::ranges::max(
      simulate::simulate(loss.schedule, loss.costs, simulate::Detail::Totals).peak_memory);
}

void check_memory(const Problem& problem) {
  double most = 0.0;
  for (std::size_t rank = 0; rank < problem.ranks(); ++rank) {
    for (const std::vector<std::uint16_t>& stages : problem.chains().on(rank)) {
      double one = 0.0;
      for (const std::uint16_t stage : stages) one += problem.size(stage, 0);
      most = std::max(most, one);
    }
  }
  if (most <= problem.memory_max()) return;
  throw Infeasible(
      str("reroute: no schedule of these ranks holds at most ", shortest(problem.memory_max()),
          ": one microbatch's activations, on all ", "stages of a rank, take ", shortest(most)),
      {str("allow a memory of ", shortest(most), " or more")});
}

// The fastest order of a problem that is found: list schedules that strive for the times of the
// loss's schedule, with W at its time or later, and others that are given; then repairs.
class Ordering {
 public:
  Ordering(const Problem& problem, const Times& times, std::size_t microbatches_per_number)
      : problem_(problem), times_(times), per_number_(microbatches_per_number), clock_(problem) {}

  void offer(const Order& order) {
    const double cost = clock_.run(order);
    if (cost == kStuck) return;
    Solution solution{.order = order, .makespan = clock_.makespan(), .cost = cost};
    if (solution.better_than(best_)) best_ = std::move(solution);
  }

  void offer_list_schedules() {
    ListScheduler scheduler(problem_);
    for (const double delay : {0.0, 1.0, 4.0, kEnd}) {
      const Targets targets = targets_of(delay);
      for (const double patience : {0.0, 0.5}) {
        for (const double early : {std::numeric_limits<double>::infinity(), 2.0}) {
          offer(scheduler.run(targets, {.patience = patience, .early = early * times_.period()}));
        }
      }
    }
  }

  void repair(double enough) {
    double work = 0.0;
    for (std::size_t s = 0; s < problem_.stages(); ++s) {
      const auto stage = static_cast<std::uint16_t>(s);
      for (std::size_t m = 0; m < problem_.chains().microbatches(s); ++m) {
        for (const Kind kind : kEveryKind) work += problem_.time({stage, kind}, m);
      }
    }
    const auto turns = static_cast<double>(problem_.turns());
    for (std::uint64_t i = 0; i < kRepairs && best_.makespan > enough; ++i) {
      Repair repair(problem_);
      Solution found = repair.run(
          best_.order, {.seed = i + 1,
                        .changes = 20 + static_cast<std::int64_t>(kReroutingTurns / turns),
                        .heat = work / turns * 0.25 * static_cast<double>(1U << i),
                        .enough = enough});
      if (found.better_than(best_)) best_ = std::move(found);
    }
  }

  const Order& best() const { return best_.order; }

 private:
  static constexpr double kEnd = 1e9;  // Comes after everything else.

  Targets targets_of(double delay) const {
    Targets targets(problem_);
    for (std::size_t s = 0; s < problem_.stages(); ++s) {
      for (std::size_t m = 0; m < problem_.chains().microbatches(s); ++m) {
        const auto number =
            static_cast<std::size_t>(problem_.chains().number_of(s, m)) / per_number_;
        for (const Kind kind : kEveryKind) {
          const double late = kind == Kind::Weight ? delay * times_.period() : 0.0;
          targets.of({static_cast<std::uint16_t>(s), kind}, m) =
              times_.start(kind, problem_.chains().in_chain(s), number) + late;
        }
      }
    }
    return targets;
  }

  const Problem& problem_;
  const Times& times_;
  std::size_t per_number_;
  Clock clock_;
  Solution best_;
};

// What no order can beat; 0 where a backward may cost less than its halves.
double enough(const Problem& problem, const Order& order) {
  const Costs hidden = simulate::without_exchanges(problem.costs());
  if (hidden.backward) return 0.0;
  const Schedule actions = problem.schedule_of(order);
  const simulate::Work work{
      .actions = actions,
      .homes = problem.chains().homes(),
      .memory_max = std::vector<double>(problem.ranks(), problem.memory_max())};
  const double bound = highest(lower_bounds(work, hidden)).makespan;
  return (bound - problem.costs().optimizer) * (1.0 + kRounding);
}

RemainingRun remaining(const Problem& problem, const Order& order, std::string name,
                       std::int32_t replicas) {
  Schedule schedule = problem.schedule_of(order);
  schedule.name = std::move(name);
  schedule.replicas = replicas;
  const Costs& costs = problem.costs();
  auto verified = with_whole_backwards(
      verify::VerifiedSchedule::from(
          std::move(schedule),
          {.memory_max = problem.memory_max(), .activation = costs.activation, .keep = costs.keep}),
      costs);
  auto simulation = simulate::simulate(verified, costs);
  return {std::move(verified), costs, std::move(simulation)};
}

// The fastest of the orders, as they are and repaired.
RemainingRun fastest(const Problem& problem, const LostRanks& loss,
                     const std::vector<Order>& orders, const std::string& name,
                     std::int32_t replicas) {
  check_memory(problem);
  const Times times(loss);
  Ordering ordering(problem, times, static_cast<std::size_t>(replicas));
  ordering.offer_list_schedules();
  for (const Order& order : orders) ordering.offer(order);
  RemainingRun first = remaining(problem, ordering.best(), name, replicas);
  ordering.repair(enough(problem, ordering.best()));
  RemainingRun repaired = remaining(problem, ordering.best(), name, replicas);
  return repaired.simulation.makespan < first.simulation.makespan ? std::move(repaired)
                                                                  : std::move(first);
}

// Chooses who takes over: the ranks of a stage that are left take turns.
class Peers {
 public:
  explicit Peers(const LostRanks& loss) : loss_(loss), rows_(rows_of(loss)), next_(rows_.size()) {
    for (const std::vector<Rank>& row : rows_) {
      auto& left = left_.emplace_back();
      for (const Rank rank : row) {
        if (!is_lost(loss, rank)) left.push_back(rank);
      }
      if (!left.empty()) continue;
      throw Infeasible(str("reroute: all ", loss.replicas, " ranks at place ", left_.size() - 1,
                           " of the pipe are lost: nobody else has their stages"),
                       {"start again from a checkpoint"});
    }
  }

  // The rank at each place of the pipe that takes the next microbatch of `replica` there.
  std::vector<Rank> take(std::int32_t replica) {
    std::vector<Rank> way;
    for (std::size_t place = 0; place < rows_.size(); ++place) {
      const Rank own = rows_[place][static_cast<std::size_t>(replica)];
      const std::vector<Rank>& left = left_[place];
      way.push_back(is_lost(loss_, own) ? left[next_[place]++ % left.size()] : own);
    }
    return way;
  }

 private:
  const LostRanks& loss_;
  std::vector<std::vector<Rank>> rows_;
  // Ranks that are left, by place; `next_` counts by place, too.
  std::vector<std::vector<Rank>> left_;
  std::vector<std::size_t> next_;
};

// New numbers of ranks, by the old ones; -1: the rank is lost.
std::vector<Rank> new_numbers(const LostRanks& loss) {
  std::vector<Rank> numbers(static_cast<std::size_t>(ranks_of(loss)), Rank(-1));
  const std::vector<Rank> left = left_of(loss);
  for (std::size_t i = 0; i < left.size(); ++i) numbers[left[i].index()] = Rank(i);
  return numbers;
}

std::vector<Chain> chains_of(const LostRanks& loss) {
  const Schedule& schedule = loss.schedule.schedule();
  const std::vector<Rank> numbers = new_numbers(loss);
  Peers peers(loss);
  std::map<std::vector<Rank>, std::size_t> known;  // Chains by their ranks at each place.
  std::vector<Chain> chains;
  for (std::int32_t m = 0; m < schedule.microbatches; ++m) {
    for (std::int32_t k = 0; k < loss.replicas; ++k) {
      const std::vector<Rank> way = peers.take(k);
      const auto [found, is_new] = known.emplace(way, chains.size());
      if (is_new) {
        Chain& chain = chains.emplace_back();
        for (const Rank pipe : loss.schedule.facts().homes.of_stages()) {
          chain.rank_of_stage.push_back(numbers[way[pipe.index()].index()]);
        }
      }
      chains[found->second].microbatches.push_back(m * loss.replicas + k);
    }
  }
  return chains;
}

// A link between two places of the pipe is one between any two ranks there.
Costs costs_of_all(const LostRanks& loss) {
  Costs costs = loss.costs;
  costs.links.clear();
  const std::vector<Rank> left = left_of(loss);
  const mesh::Mesh mesh = mesh_of(loss);
  std::vector<Rank> rows;  // The schedule's rank that each rank which is left stands for.
  for (const Rank rank : left) rows.emplace_back(mesh.index(rank, mesh::Role::Pipe));
  for (const simulate::Link& link : loss.costs.links) {
    for (std::size_t from = 0; from < left.size(); ++from) {
      if (rows[from] != link.from) continue;
      for (std::size_t to = 0; to < left.size(); ++to) {
        if (rows[to] != link.to) continue;
        costs.links.push_back({Rank(from), Rank(to), link.latency, link.bandwidth});
      }
    }
  }
  return costs;
}

}  // namespace

mesh::Mesh mesh_of(const LostRanks& loss) {
  return mesh::make_mesh({.pipe = pipe_ranks(loss), .data = loss.replicas});
}

std::vector<Rank> left_of(const LostRanks& loss) {
  std::vector<Rank> left;
  for (std::int32_t rank = 0; rank < ranks_of(loss); ++rank) {
    if (!is_lost(loss, Rank(rank))) left.emplace_back(rank);
  }
  return left;
}

RemainingRun reroute(const LostRanks& loss) {
  check(loss);
  const Problem problem(chains_of(loss), static_cast<std::int32_t>(left_of(loss).size()),
                        costs_of_all(loss), memory_of(loss));
  const std::string name =
      str(loss.schedule.schedule().name,
          loss.lost.size() == 1 ? " without rank " : " without ranks ", join(loss.lost, " "));
  return fastest(problem, loss, {}, name, loss.replicas);
}

std::optional<Resharded> reshard(const LostRanks& loss) {
  check(loss);
  const Schedule& schedule = loss.schedule.schedule();
  const auto left = static_cast<std::int32_t>(left_of(loss).size());
  const std::int32_t replicas = left / schedule.ranks();
  if (replicas == 0) return {};
  const std::int32_t all = schedule.microbatches * loss.replicas;
  const std::int32_t microbatches = (all + replicas - 1) / replicas;
  const Problem problem(loss.schedule.facts().homes.of_stages(), schedule.ranks(), microbatches,
                        loss.costs, memory_of(loss));
  return Resharded{
      .replicas = replicas,
      .microbatches = microbatches,
      .remaining = fastest(problem, loss, generated_orders(problem), schedule.name, 1)};
}

}  // namespace penstock::search
