#include "penstock/plan/adapt/proposal.h"

#include <utility>
#include <vector>

#include "penstock/plan/lower/programs.h"
#include "penstock/plan/search/reorder.h"
#include "penstock/simulate/simulate.h"

namespace penstock::adapt {
namespace {

double step_of(const verify::VerifiedSchedule& program, const simulate::Costs& costs) {
  return simulate::simulate(program, costs, simulate::Detail::Totals).makespan;
}

}  // namespace

std::optional<std::string> objection_to_planning(const verify::VerifiedSchedule& program,
                                                 Sums sums) {
  if (program.schedule().ranks() == 1) return "one rank of the pipe waits for nobody";
  if (auto text = search::objection_to_reorder(program)) return text;
  return objection_to_order(program, sums);
}

Proposal propose(const verify::VerifiedSchedule& program, const simulate::Costs& costs,
                 const Terms& terms, const search::Budget& budget) {
  // In activations, each of them 1: nobody knows their bytes here.
  search::Reorder request{.schedule = program,
                          .costs = costs,
                          .memory_max = std::vector<double>(terms.room.begin(), terms.room.end())};
  search::Reordered found = search::reorder(request, budget);
  schedule::Schedule order = found.schedule.schedule();
  order.name = "adapted";
  Proposal proposal{.step_now = step_of(program, costs), .bound = found.bound.makespan};
  const auto next =
      verify::VerifiedSchedule::from(lower::with_messages(std::move(order), "penstock"));
  proposal.step = step_of(next, costs);
  if (proposal.step >= proposal.step_now || objection_to_change(program, next, terms)) {
    proposal.step = proposal.step_now;
    proposal.program = program.schedule();
  } else {
    proposal.program = next.schedule();
  }
  return proposal;
}

}  // namespace penstock::adapt
