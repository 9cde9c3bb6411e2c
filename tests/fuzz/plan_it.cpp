#include "tests/fuzz/plan_it.h"

#include <algorithm>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/plan/lower/lowering.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/simulate/simulate.h"
#include "penstock/verify/verify.h"

namespace penstock::fuzz {
namespace {

using schedule::Schedule;
using verify::VerifiedSchedule;

void lower_all(const VerifiedSchedule& verified) {
  const std::int32_t ranks = verified.schedule().ranks();
  const auto mesh = mesh::make_mesh(ranks, {.pipe = ranks, .data = 1});
  partition::Partition partition;
  for (std::int32_t s = 0; s <= verified.schedule().stages; ++s) partition.bounds.push_back(s);
  try {
    const lower::Lowering lowering(verified, partition, mesh);
    for (std::int32_t r = 0; r < ranks; ++r) lowering.plan(Rank(r));
  } catch (const ScheduleError&) {
    // What the executor does not run, it says.
  }
}

// Where nothing else is waited for, a rank that runs in order can only be later for more waiting.
void simulate_under(const verify::Options& options, const Schedule& schedule, double soonest) {
  if (!verify::verify(schedule, options).diagnostics.empty()) return;
  const auto simulation = simulate::simulate(VerifiedSchedule::from(schedule, options));
  PENSTOCK_CHECK(simulation.makespan >= soonest, simulation.makespan, " before ", soonest);
}

void plan_verified(const Schedule& schedule) {
  const auto verified = VerifiedSchedule::from(schedule);
  const auto simulation = simulate::simulate(verified);
  for (const double busy : simulation.busy) {
    PENSTOCK_CHECK(busy <= simulation.makespan, busy, " busy of ", simulation.makespan);
  }
  for (const verify::Channels channels : verify::kChannels) {
    for (const auto communication :
         {verify::Communication::Overlapped, verify::Communication::Blocking}) {
      simulate_under({.channels = channels, .communication = communication}, schedule,
                     simulation.makespan);
    }
  }
  lower_all(verified);
}

bool orders_only_the_compute(const Schedule& schedule) {
  return std::ranges::all_of(schedule.programs, [](const schedule::Program& program) {
    return std::ranges::all_of(
        program, [](const schedule::Action& action) { return schedule::is_compute(action.op); });
  });
}

}  // namespace

void plan_it(const Schedule& schedule) {
  const verify::Verdict verdict = verify::verify(schedule);
  for (const verify::Diagnostic& diagnostic : verdict.diagnostics) {
    PENSTOCK_CHECK(!to_string(diagnostic).empty(), "an objection without words");
  }
  if (!verdict.diagnostics.empty()) return;
  plan_verified(schedule);
  if (orders_only_the_compute(schedule)) plan_verified(schedule::lower_communication(schedule));
}

}  // namespace penstock::fuzz
