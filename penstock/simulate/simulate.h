// When each compute action of a verified schedule would run, given what actions cost.
//
// render draws the result; people compare schedules with it.  Exact for the model it has: a rank
// runs its compute actions strictly in order, an action starts when its rank is free and its inputs
// are there, a value that crosses ranks takes `latency`, links are unlimited.
// Units: any; times and costs share one.
#pragma once
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/verify/verify.h"

namespace penstock::simulate {

struct Costs {
  double forward = 1.0;  // One stage, one microbatch.
  double backward = 2.0;
  double latency = 0.0;  // From the end of a producer to the arrival on another rank.
};

struct Event {
  Rank rank;
  schedule::Action action;
  double start = 0.0;
  double end = 0.0;
};

struct Simulation {
  double makespan = 0.0;
  std::vector<double> busy;   // By rank: the sum of its actions' costs.
  std::vector<Event> events;  // By rank, in program order.
};

// REQUIRES: costs are finite and not negative.
Simulation simulate(const verify::VerifiedSchedule& schedule, const Costs& costs = {});

}  // namespace penstock::simulate
