// Finds messages that would be taken for one another where only their order tells them apart.
//
// verify() calls it for DirFifo channels, on a schedule whose messages are paired.
#pragma once
#include <vector>

#include "penstock/plan/verify/diagnostic.h"
#include "penstock/plan/verify/hops.h"

namespace penstock::verify {

// The first RECV of each direction between two ranks that would be given another's message: what
// comes after it is out of order, too.
std::vector<Diagnostic> misorders(const schedule::Schedule& schedule, const Hops& hops);

}  // namespace penstock::verify
