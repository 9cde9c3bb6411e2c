// What really ran, as a Chrome/Perfetto trace: one process per rank, a row for compute and one for
// communication.
//
// run.h records the first steps of a run and writes timeline.json from them.
// Units: microseconds since the earliest event; the ranks' clocks must be one clock, so the ranks
// share a host or the rows are shifted.
#pragma once
#include <string>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/execute/executor.h"

namespace penstock::train {

class Timeline {
 public:
  // Adds the recorded events of one step.
  void add(std::int64_t step, const execute::Executor& executor);

  // Collective over all ranks: brings every rank's events together.
  // Returns the trace's text on rank 0, "" elsewhere.
  std::string gather(comm::Communicator& communicator) const;

 private:
  std::string lines_;  // One event a line, as they travel.
};

}  // namespace penstock::train
