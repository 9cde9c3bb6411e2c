// The passes for AVX-512; cmake/passes.cmake has the flags.
#include "penstock/runtime/nn/passes/table.h"

namespace penstock::nn::passes {

const Kernels kAvx512Kernels = kOfThisFile;

}  // namespace penstock::nn::passes
