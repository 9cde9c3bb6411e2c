// How a run goes on with fewer ranks than it began with, as whole replicas.
//
// `penstock train --elastic` asks it when ranks are gone for good; rerouting.h knows the other way.
// Knows no processes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/config/config.h"
#include "penstock/plan/choose/layout.h"
#include "penstock/plan/choose/run_costs.h"
#include "penstock/verify/verify.h"

namespace penstock::choose {

// The layouts of `ranks` ranks that train as `before` does: as many samples a step, in microbatches
// of the same size, so that only the number of microbatches a replica changes.  None has more
// pipeline ranks than `before`: its schedule may have no such order.  As many ranks share a layer
// as before, so `ranks` is a multiple of those.
std::vector<Layout> layouts_on(std::int64_t ranks, const Layout& before);

struct TimedLayout {
  Layout layout;
  double step = 0.0;  // Simulated, in the unit of the costs.
};

// The best of layouts_on() that can run; absent: none can.  A rank may have no room for more than
// it had, so the layout whose ranks hold the least of parameters, gradients and states is best; of
// those that hold as much, the fastest by simulation.
// `name`: of the configuration, whose layout was `before`, with these costs.
std::optional<TimedLayout> layout_on(std::int64_t ranks, const std::string& name,
                                     const config::Config& config, const Layout& before,
                                     const RunCosts& costs);

// The program of the configuration with this layout.
// Throws: Error, where there is none.
verify::VerifiedSchedule program_on(const config::Config& config, const Layout& layout);

// "pipe(2) x data(1) for pipe(2) x data(2), 8 microbatches a replica for 4; 8 samples a step as
// before"
std::string change_text(const Layout& before, const Layout& after);

}  // namespace penstock::choose
