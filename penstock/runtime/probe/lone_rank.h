// The exchanges of a rank that shares layers with others, none of which is there.
//
// The probe runs shared layers with it.  The rank's own code of exchanges runs, with its buffers;
// what others would send is zeros.  Knows no layers.
#pragma once
#include <memory>

#include "penstock/plan/partition/cut.h"
#include "penstock/runtime/stage/exchanges.h"

namespace penstock::probe {

// REQUIRES: nobody asks it how large a whole is of which only a part is known.
std::shared_ptr<stage::Exchanges> exchanges_alone(const partition::Share& share);

}  // namespace penstock::probe
