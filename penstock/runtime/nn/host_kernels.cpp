#include "penstock/runtime/nn/host_kernels.h"

namespace penstock::nn {
namespace {

thread_local int host_kernels = 0;  // How many HostKernels there are.

}  // namespace

HostKernels::HostKernels() { ++host_kernels; }
HostKernels::~HostKernels() { --host_kernels; }

bool uses_host_kernels(const at::Tensor& tensor) { return tensor.is_cpu() || host_kernels > 0; }
bool uses_cuda_kernels(const at::Tensor& tensor) { return tensor.is_cuda() && host_kernels == 0; }

}  // namespace penstock::nn
