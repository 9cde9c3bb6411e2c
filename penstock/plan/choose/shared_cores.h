// The time of a simulated step where the ranks of a node are more than its cores.
//
// Step times ask it.  Ranks that compute share the cores of their node evenly: while k of them
// compute on c < k cores, each computes at c / k of its speed, over Network::crowding.  All ranks
// are slowed down alike, as much as those of the most loaded node.  So the order of events stays,
// and time is stretched wherever too many ranks compute.  Exact for one node and messages that take
// no time.  Source: processor sharing (Kleinrock 1967).
#pragma once
#include "penstock/plan/choose/layout.h"
#include "penstock/plan/choose/network.h"
#include "penstock/simulate/simulate.h"

namespace penstock::choose {

// Whether some node has more ranks than cores.
bool shares_cores(const Layout& layout, const Network& network);

// The time from 0 to the end of the simulation's last event, and `update` more, in which all ranks
// compute.
// Units: seconds.
// REQUIRES: the simulation is one of a pipeline of the layout, with Detail::Events.
double time_on_shared_cores(const simulate::Simulation& simulation, double update,
                            const Layout& layout, const Network& network);

}  // namespace penstock::choose
