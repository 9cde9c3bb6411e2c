// Passes of processors that have one set of vector instructions, the compiler's baseline.
#include "penstock/runtime/nn/passes/kernels.h"

namespace penstock::nn::passes {

const Kernels& kernels() { return kDefaultKernels; }

}  // namespace penstock::nn::passes
