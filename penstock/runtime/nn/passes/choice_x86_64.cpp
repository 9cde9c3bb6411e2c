// Passes of processors that may have AVX2 or AVX-512.
#include <ATen/Version.h>

#include <string>

#include "penstock/runtime/nn/passes/kernels.h"

namespace penstock::nn::passes {
namespace {

const Kernels& chosen() {
  const std::string capability = at::get_cpu_capability();
  if (capability == "AVX512") return kAvx512Kernels;
  return capability == "AVX2" ? kAvx2Kernels : kDefaultKernels;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& of_processor = chosen();
  return of_processor;
}

}  // namespace penstock::nn::passes
