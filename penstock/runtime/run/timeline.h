// The measured timeline of a run: every rank collects its events, rank 0 has those of all.
//
// run.h records the first steps of a run and writes timeline.csv and timeline.json from it; what
// they hold: measure/recording.h and docs/run_directory.md.  Collecting copies plain numbers; texts
// are made once, at the end.
#pragma once
#include <cstdint>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/mesh/mesh.h"
#include "penstock/plan/measure/recording.h"
#include "penstock/runtime/execute/executor.h"

namespace penstock::run {

// What a rank did in the step that its executor recorded last.
std::vector<measure::Event> measured_events(const execute::Executor& executor, std::int64_t step,
                                            Rank rank);

// The same for processes of which the steady clock has one origin.
std::uint64_t steady_clock_id();

class Timeline {
 public:
  // Adds the recorded events of one step.
  // REQUIRES: every step is of the same plan.
  void add(std::int64_t step, const execute::Executor& executor);

  // Collective over all ranks: brings every rank's events together.
  // Returns: the whole on rank 0, nothing elsewhere.
  measure::Recording gather(const mesh::Mesh& mesh, const lower::Plan& plan,
                            comm::Communicator& communicator) const;

 private:
  struct Step {
    std::int64_t number;
    std::vector<execute::Event> events;
    std::vector<execute::ExchangeTimes> exchanges;
  };
  std::vector<Step> steps_;
};

}  // namespace penstock::run
