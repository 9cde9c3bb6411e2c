// Kernels that layers choose for a tensor, where torch has other ones for devices.
//
// Layers ask it.  Whoever tells the memory of a run on processors by shapes alone has a
// HostKernels: tensors lie on a virtual device then.  Thread safety: for the thread that makes one.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string_view>
#include <vector>

namespace penstock::nn {

// While one lives, tensors of devices are computed on as those of the host are.
class HostKernels {
 public:
  // Is told of passes (passes/passes.h), which are none of torch's operators: what each reads and
  // writes.
  using Told = std::function<void(std::string_view pass, const std::vector<at::Tensor>& reads,
                                  const std::vector<at::Tensor>& writes)>;
  explicit HostKernels(Told told);
  ~HostKernels();
  HostKernels(const HostKernels&) = delete;
  HostKernels& operator=(const HostKernels&) = delete;

  // The youngest one of this thread, or null.
  static const HostKernels* here();
  const Told& told() const { return told_; }

 private:
  Told told_;
};

bool uses_host_kernels(const at::Tensor& tensor);
// Whether the kernels are CUDA's.
bool uses_cuda_kernels(const at::Tensor& tensor);

}  // namespace penstock::nn
