// Kernels that layers choose for a tensor, where torch has other ones for devices.
//
// Layers ask it.  Whoever tells the memory of a run on processors by shapes alone has a
// HostKernels: tensors lie on a virtual device then.  Thread safety: for the thread that makes one.
#pragma once
#include <ATen/core/Tensor.h>

namespace penstock::nn {

// While one lives, tensors of devices are computed on as those of the host are.
class HostKernels {
 public:
  HostKernels();
  ~HostKernels();
  HostKernels(const HostKernels&) = delete;
  HostKernels& operator=(const HostKernels&) = delete;
};

bool uses_host_kernels(const at::Tensor& tensor);
// Whether the kernels are CUDA's.
bool uses_cuda_kernels(const at::Tensor& tensor);

}  // namespace penstock::nn
