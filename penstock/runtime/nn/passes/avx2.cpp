// The passes for AVX2 and FMA; cmake/passes.cmake has the flags.
#include "penstock/runtime/nn/passes/table.h"

namespace penstock::nn::passes {

const Kernels kAvx2Kernels = kOfThisFile;

}  // namespace penstock::nn::passes
