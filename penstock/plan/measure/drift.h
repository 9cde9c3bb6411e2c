// How a measured step differs from the simulated one, action by action.
//
// `penstock report` prints it and puts it beside the two timelines.  Knows not how either was made.
// Units: milliseconds; measured minus simulated: above 0 is later, or longer.
#pragma once
#include <vector>

#include "penstock/plan/measure/measured_step.h"
#include "penstock/simulate/simulate.h"

namespace penstock::measure {

struct Drift {
  Rank rank;  // Rank of the pipe.
  schedule::Action action;
  double start = 0.0;
  double duration = 0.0;  // Drift of the time for which the action holds its rank.
};

// The drifts of every F, B, I and W, by rank, in program order.
// REQUIRES: both are of one schedule; the simulation has Detail::Events.
std::vector<Drift> drifts(const MeasuredStep& measured, const simulate::Simulation& simulated);

// The drift of all actions of one op on one stage.
struct OpDrift {
  StageId stage;
  schedule::Op op = schedule::Op::Forward;
  double start_first = 0.0;  // Drift of the first action that ran, then of the last.
  double start_last = 0.0;
  double duration_median = 0.0;
  double duration_largest = 0.0;  // The one farthest from 0.
};

// Drifts by stage, then op.
std::vector<OpDrift> by_op(const std::vector<Drift>& drifts);

}  // namespace penstock::measure
