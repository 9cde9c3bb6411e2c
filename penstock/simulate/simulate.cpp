#include "penstock/simulate/simulate.h"

#include <algorithm>
#include <limits>
#include <span>

#include "penstock/core/check.h"
#include "penstock/verify/table.h"

namespace penstock::simulate {
namespace {

using schedule::Action;
using schedule::Op;
using schedule::Program;
using schedule::Purpose;
using schedule::Schedule;

constexpr double kNotYet = std::numeric_limits<double>::infinity();

void check_costs(const Costs& costs, std::int32_t stages) {
  const auto check = [](double cost) {
    PENSTOCK_CHECK(cost >= 0.0 && cost < kNotYet, "cost ", cost);
  };
  const auto check_all = [&](const PerStage& of) {
    const auto count = std::ssize(of.values());
    PENSTOCK_CHECK(count == 1 || count == stages, count, " costs for ", stages, " stages");
    std::ranges::for_each(of.values(), check);
  };
  check_all(costs.forward);
  check_all(costs.input);
  check_all(costs.weight);
  if (costs.backward) check_all(*costs.backward);
  check_all(costs.activation);
  check(costs.latency);
  PENSTOCK_CHECK(costs.keep >= 0.0 && costs.keep <= 1.0, "keep ", costs.keep);
}

class Simulator {
 public:
  Simulator(const verify::VerifiedSchedule& verified, const Costs& costs)
      : verified_(verified),
        schedule_(verified.schedule()),
        costs_(costs),
        cells_(schedule_.stages, schedule_.microbatches),
        end_of_(cells_.cells(), kNotYet),
        waiter_(cells_.cells(), kNobody),
        ranks_(schedule_.programs.size()) {}

  Simulation run() {
    for (std::size_t rank = ranks_.size(); rank > 0; --rank) ready_.push_back(rank - 1);
    while (!ready_.empty()) {
      const std::size_t rank = ready_.back();
      ready_.pop_back();
      advance(rank);
    }
    Simulation simulation;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) summarize(rank, simulation);
    return simulation;
  }

 private:
  struct RankState {
    std::size_t next = 0;
    double clock = 0.0;
    std::vector<Event> events;
  };

  static constexpr std::size_t kNobody = static_cast<std::size_t>(-1);

  // Runs the rank's program as far as arrivals allow; then it waits for the first that is missing.
  void advance(std::size_t rank) {
    RankState& state = ranks_[rank];
    const Program& program = schedule_.programs[rank];
    while (state.next < program.size()) {
      const std::size_t width = program[state.next].overlaps_next ? 2 : 1;
      const auto together = std::span(program).subspan(state.next, width);
      if (schedule::is_compute(together.front().op)) {
        double start = state.clock;
        for (const Action& action : together) {
          const double arrival = arrival_time(action);
          if (arrival == kNotYet) {
            waiter_[cells_.cell(*arrival_of(action))] = rank;
            return;
          }
          start = std::max(start, arrival);
        }
        compute(Rank(rank), together, start);
      }
      state.next += width;
    }
  }

  std::optional<Action> arrival_of(const Action& action) const {
    return verify::needs_of(action, schedule_.stages).arrival;
  }

  double arrival_time(const Action& action) const {
    const auto arrival = arrival_of(action);
    if (!arrival) return 0.0;
    const bool local = verified_.rank_of(arrival->stage) == verified_.rank_of(action.stage);
    return end_of_[cells_.cell(*arrival)] + (local ? 0.0 : costs_.latency);
  }

  void compute(Rank rank, std::span<const Action> together, double start) {
    RankState& state = ranks_[rank.index()];
    state.clock = start;
    for (const Action& action : together) {
      const double end = state.clock + costs_.of(action);
      state.events.push_back({rank, action, state.clock, end});
      state.clock = end;
    }
    for (const Action& action : together) {
      const std::size_t cell = cells_.cell(verify::value_of(action));
      end_of_[cell] = state.clock;
      if (waiter_[cell] != kNobody) ready_.push_back(waiter_[cell]);
    }
  }

  void summarize(std::size_t rank, Simulation& simulation) const {
    const RankState& state = ranks_[rank];
    PENSTOCK_CHECK(state.next == schedule_.programs[rank].size(), "rank ", rank, " is stuck");
    double busy = 0.0;
    for (const Event& event : state.events) busy += event.end - event.start;
    simulation.busy.push_back(busy);
    simulation.span.push_back(state.events.empty() ? 0.0
                                                   : state.clock - state.events.front().start);
    simulation.peak_memory.push_back(peak_memory(state.events));
    simulation.makespan = std::max(simulation.makespan, state.clock);
    simulation.events.insert(simulation.events.end(), state.events.begin(), state.events.end());
  }

  double peak_memory(const std::vector<Event>& events) const {
    if (schedule_.purpose == Purpose::Forward) return 0.0;
    double memory = 0.0;
    double peak = 0.0;
    for (const Event& event : events) {
      memory += costs_.activation.at(event.action.stage) * change_of(event.action.op);
      peak = std::max(peak, memory);
    }
    return peak;
  }

  // What an action does to the memory of its activation: taken as it starts, freed as it ends.
  double change_of(Op op) const {
    if (op == Op::Forward) return 1.0;
    if (op == Op::Backward) return -1.0;
    return op == Op::BackwardInput ? costs_.keep - 1.0 : -costs_.keep;
  }

  const verify::VerifiedSchedule& verified_;
  const Schedule& schedule_;
  const Costs& costs_;
  verify::Table cells_;  // Only its numbering of cells.
  std::vector<double> end_of_;
  std::vector<std::size_t> waiter_;  // By cell: the rank that waits for it.
  std::vector<RankState> ranks_;
  std::vector<std::size_t> ready_;
};

}  // namespace

double Costs::of(const Action& action) const {
  switch (action.op) {
    case Op::Forward:
      return forward.at(action.stage);
    case Op::Backward:
      return backward ? backward->at(action.stage)
                      : input.at(action.stage) + weight.at(action.stage);
    case Op::BackwardInput:
      return input.at(action.stage);
    case Op::BackwardWeight:
      return weight.at(action.stage);
    case Op::SendForward:
    case Op::RecvForward:
    case Op::SendBackward:
    case Op::RecvBackward:
    case Op::Unshard:
    case Op::Reshard:
    case Op::ReduceGradients:
      return 0.0;
  }
  return 0.0;
}

Simulation simulate(const verify::VerifiedSchedule& verified, const Costs& costs) {
  check_costs(costs, verified.schedule().stages);
  return Simulator(verified, costs).run();
}

}  // namespace penstock::simulate
