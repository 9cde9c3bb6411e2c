// What of a process all ranks must have in common (agreement/facts.h).
//
// The handshake compares it.  Knows no ranks.
#pragma once
#include "penstock/core/agreement/facts.h"

namespace penstock::train {

using agreement::Facts;

// What decides on results and is nobody's argument: versions, torch's settings, and the variables
// of the environment that kernels read.
Facts facts_of_process();

// What replicas need that each update their own copy of a parameter: the bits of an update of fixed
// values.  They are others for other CPU kernels, or where small numbers are flushed to zero.
Facts facts_of_host_updates();

// What makes sums of many values come out with the same bits: threads and CPU kernels.
Facts facts_of_bits();

}  // namespace penstock::train
