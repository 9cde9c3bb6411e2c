// Torch's operators that draw random numbers, as they run inside of a DrawScope.
//
// torch::dropout, rand_like, bernoulli_, what torch's modules and TorchScript call: all come down
// to a few operators that take a generator, and mostly are given none.  Torch's default generator
// stands in for it then, which ranks that are threads share.  So the scope stands before these
// operators and gives them its own generator.  It does so under a dispatch key that nobody else
// uses, and that is on for its thread alone.  All other operators fall through the key, which costs
// them nothing.  Where kernels of a device draw without an argument for it (fused attention), the
// device's default generator has the scope's state for that operator.
// Not seen: cuDNN's dropout between layers of an LSTM, which keeps a state of its own.
// Thread safety: registered before main(); the rest is a thread's own.
#pragma once
#include <c10/core/DispatchKey.h>

namespace penstock::nn {

// The key that a DrawScope turns on.
c10::DispatchKey key_of_draws();

}  // namespace penstock::nn
