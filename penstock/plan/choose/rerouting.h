// Whether a run that has lost ranks keeps the others in their places.
//
// `penstock train --elastic` asks it beside fewer_ranks.h, which makes whole replicas of fewer
// ranks.  Here the ranks that are left run a rerouted program (search/reroute.h): the microbatches
// of the lost ones pass their stages elsewhere.  Both are simulated, with the costs that the run
// has measured, and the faster one is taken.  Since a run starts again from its checkpoint, any
// rank may be the one that is left out: the places with the least work are tried.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/config/config.h"
#include "penstock/plan/choose/fewer_ranks.h"
#include "penstock/plan/choose/layout.h"
#include "penstock/plan/choose/run_costs.h"
#include "penstock/plan/search/reroute.h"
#include "penstock/verify/verify.h"

namespace penstock::choose {

struct Rerouted {
  verify::VerifiedSchedule program;    // Program of all ranks that are left, with its messages.
  std::vector<Rank> left_out;          // Their numbers in the layout of whole replicas.
  double step = 0.0;                   // Simulated: ms, or, unmeasured, in passes of a stage.
  std::optional<double> instead = {};  // The step of whole replicas; absent: there are none.
  bool is_measured = false;

  bool is_faster() const { return !instead || step < *instead; }
};

class Rerouting {
 public:
  // Decides for a run with this configuration and layout.
  Rerouting(const config::Config& config, const Layout& layout);

  // How `ranks` of the layout's could go on; `instead` is what they would have otherwise.  Ranks
  // that are left out stay so.
  // REQUIRES: no why_not(); fewer ranks than those of the layout, and than in the call before.
  // Throws: Error, where there is no such program: a place has no rank left, or too many actions.
  Rerouted on(std::int64_t ranks, const std::optional<TimedLayout>& instead, const RunCosts& costs);

  // Why no program of several replicas trains this; "": one may.
  std::string why_not() const;

 private:
  search::RemainingRun leave_out_one_more(const verify::VerifiedSchedule& order,
                                          const simulate::Costs& costs);

  const config::Config& config_;
  Layout layout_;
  std::vector<Rank> left_out_;
};

// The layout of its ranks, whose program is in `file`: one pipe of all of them, with all
// microbatches of a step.
Layout layout_of(const Rerouted& rerouted, const Layout& before, std::string file);

// "all stay in their places, without rank 2 of pipe(2) x data(2), whose microbatches ..."
std::string text_of(const Rerouted& rerouted, const Layout& before);
// "by simulation 66.9 ms a step, with whole replicas 86.5 ms"
std::string times_text(const Rerouted& rerouted);

}  // namespace penstock::choose
