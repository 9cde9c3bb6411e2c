// The passes for the baseline of the compiler; cmake/passes.cmake has the flags.
#include "penstock/runtime/nn/passes/table.h"

namespace penstock::nn::passes {

const Kernels kDefaultKernels = kOfThisFile;

}  // namespace penstock::nn::passes
