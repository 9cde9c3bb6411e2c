#include "penstock/simulate/simulate.h"

#include <algorithm>
#include <limits>

#include "penstock/core/check.h"
#include "penstock/verify/table.h"

namespace penstock::simulate {
namespace {

using schedule::Action;
using schedule::Op;
using schedule::Program;

constexpr double kNotYet = std::numeric_limits<double>::infinity();

}  // namespace

Simulation simulate(const verify::VerifiedSchedule& verified, const Costs& costs) {
  for (const double cost : {costs.forward, costs.backward, costs.latency}) {
    PENSTOCK_CHECK(cost >= 0.0 && cost < kNotYet, "cost ", cost);
  }
  const schedule::Schedule& schedule = verified.schedule();
  const verify::Table cells(schedule.stages, schedule.microbatches);
  std::vector<double> end_of(cells.cells(), kNotYet);
  std::vector<std::size_t> next(schedule.programs.size(), 0);
  std::vector<double> clock(schedule.programs.size(), 0.0);
  std::vector<std::vector<Event>> events(schedule.programs.size());

  const auto arrival_time = [&](const Action& action) {
    const auto needs = verify::needs_of(action, schedule.stages);
    if (!needs.arrival) return 0.0;
    const bool local = verified.rank_of(needs.arrival->stage) == verified.rank_of(action.stage);
    return end_of[cells.cell(*needs.arrival)] + (local ? 0.0 : costs.latency);
  };
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t rank = 0; rank < next.size(); ++rank) {
      const Program& program = schedule.programs[rank];
      for (; next[rank] < program.size(); ++next[rank]) {
        const Action& action = program[next[rank]];
        if (!schedule::is_compute(action.op)) continue;
        const double arrival = arrival_time(action);
        if (arrival == kNotYet) break;
        const double start = std::max(clock[rank], arrival);
        clock[rank] = start + (action.op == Op::Forward ? costs.forward : costs.backward);
        end_of[cells.cell(action)] = clock[rank];
        events[rank].push_back({Rank(rank), action, start, clock[rank]});
        moved = true;
      }
    }
  }

  Simulation simulation;
  for (std::size_t rank = 0; rank < next.size(); ++rank) {
    PENSTOCK_CHECK(next[rank] == schedule.programs[rank].size(), "rank ", rank, " is stuck");
    double busy = 0.0;
    for (const Event& event : events[rank]) busy += event.end - event.start;
    simulation.busy.push_back(busy);
    simulation.makespan = std::max(simulation.makespan, clock[rank]);
    simulation.events.insert(simulation.events.end(), events[rank].begin(), events[rank].end());
  }
  return simulation;
}

}  // namespace penstock::simulate
