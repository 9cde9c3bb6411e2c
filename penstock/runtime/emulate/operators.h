// torch's operators on the virtual device.
//
// An operator's results are made by torch's own kernel for "meta" tensors, on tensors with the same
// sizes, strides and sharing of memory; what has no such kernel has one here.  Views cost nothing;
// all else is one kernel.
#pragma once

namespace penstock::emulate {

// REQUIRES: called once.
void install_operators();

}  // namespace penstock::emulate
