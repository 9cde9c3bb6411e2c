// Fits what F, B, I, W and messages cost to recorded steps: the costs that `penstock simulate
// --costs` reads.
//
// The method, which is meant to be robust against the few slow samples of a shared machine:
// - A computation costs the median, over all steps, replicas and microbatches of its stage, of the
//   time for which it held its rank (measured_step.h).  Where messages of one hop differ in size
//   from microbatch to microbatch, so do computations: then each microbatch has its own median.
// - A message that its receiver was waiting for when it was posted took from the end of its SEND to
//   the end of that wait.  The latency is the median of these times.  Where sizes differ, time is a
//   line over size through the medians of each size: its slope is the median of the slopes between
//   any two of them (Theil 1950, Sen 1968), and its inverse the bandwidth.
// - With replicas, the last REDUCE_GRAD of a rank costs the median time until its step ends; the
//   others cost nothing, because what they reduce is on its way while the rank computes.
//
// A makespan is the longest of some sums of costs, since no order changes: it grows with each cost,
// and by a share x when all do.  So a step whose times are all within a share x of the costs has a
// makespan within x of the simulated one; and one whose times are all between the lower and the
// upper quartiles, a makespan between those that are simulated with these as costs.
// Units: milliseconds; bytes; bytes per millisecond.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "penstock/plan/measure/measured_step.h"
#include "penstock/plan/simulate/costs.h"

namespace penstock::measure {

struct Quartiles {
  double lower = 0.0;
  double median = 0.0;
  double upper = 0.0;
  std::size_t samples = 0;
};

// The quartiles of values in any order: each is the mean of the two that it falls between, where it
// does.
// REQUIRES: `values` is not empty.
Quartiles quartiles(std::vector<double> values);

// All actions of one op on one stage.
struct OpCost {
  StageId stage;
  schedule::Op op = schedule::Op::Forward;
  Quartiles hold;
  double own = 0.0;  // Median of what the action itself takes of it.
};

struct Fit {
  simulate::Costs costs;
  std::vector<OpCost> ops;  // Computations by stage, then op; then reductions.
  // Latency of all messages of any size; absent: none was waited for.
  std::optional<Quartiles> latency;
  bool has_guessed_halves = false;  // I and W did not run on some stage: each costs half of B.
};

// The costs are at `level`: the medians, or the quartiles instead.
// REQUIRES: `steps` is not empty, and of that schedule.
Fit fit(std::span<const MeasuredStep> steps, const verify::VerifiedSchedule& schedule,
        double Quartiles::* level = &Quartiles::median);

}  // namespace penstock::measure
