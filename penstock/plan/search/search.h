// The fastest schedule that can be found, and how much faster any other one could be.
//
// Callers say what has to be scheduled, and for how long to search.  Every answer is verified and
// simulated as any other schedule is; what the parts of the search find out is only believed then.
//
// A search goes in rounds, each of some pieces of work that do not depend on each other: a piece
// tunes a building block (seeds.h), or repairs an order (repair.h).  All that is random comes from
// the seed, the round and the piece, and a round is over when all its pieces are.  So the answer
// after a number of rounds is the same on any machine; only how many rounds there are depends on
// the time.
// Reads no clock: `stop` does.
// Thread safety: `stop` is called from several threads at once, `progress` from the caller's alone.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/plan/search/placement.h"
#include "penstock/plan/simulate/costs.h"
#include "penstock/plan/simulate/lower_bounds.h"
#include "penstock/simulate/simulate.h"
#include "penstock/verify/verify.h"

namespace penstock::search {

struct Request {
  std::int32_t ranks = 1;
  std::int32_t microbatches = 1;
  std::vector<std::int32_t> stages_per_rank = {1};
  std::vector<Placement> placements = {Placement::Loop, Placement::V};
  // Costs of all stages of a rank together.  If one of them is a list by stage, all are costs of
  // single stages.
  simulate::Costs costs;
  std::optional<double> memory_max =
      {};  // Limit on each rank's activations, in the unit of `activation`.
};

struct Progress {
  std::int64_t rounds = 0;
  double makespan = 0.0;
  double lower_bound = 0.0;
};

struct Budget {
  std::uint64_t seed = 1;
  std::int64_t rounds = std::numeric_limits<std::int64_t>::max();
  std::function<bool()> stop = [] { return false; };  // Asked now and then.
  // Called after each round.
  std::function<void(const Progress&)> progress = [](const Progress&) {};
};

struct Result {
  verify::VerifiedSchedule schedule;  // A compute order, verified with the memory limit.
  simulate::Costs costs;              // Costs of its stages.
  simulate::Simulation simulation;
  std::int32_t stages_per_rank = 1;
  Placement placement = Placement::Loop;
  // The highest bound with the schedule's own stages on its own ranks, and what nothing that the
  // request allows can beat: the lower one of all its placements.
  simulate::LowerBound placed_bound;
  simulate::LowerBound bound;
  std::int64_t rounds = 0;
  std::int64_t simulated = 0;  // Orders.

  // How much of the bound the makespan is above it; 0 but for rounding is 0.
  double gap() const;
  bool is_optimal() const { return gap() == 0.0; }
};

// Tells that no schedule has so little memory; the notes say what would do.
class Infeasible : public Error {
 public:
  using Error::Error;
};

// Throws: Infeasible; ConfigError for sizes and costs that do not fit, with what is expected.
Result search(const Request& request, const Budget& budget = {});

}  // namespace penstock::search
