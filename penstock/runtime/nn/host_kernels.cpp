#include "penstock/runtime/nn/host_kernels.h"

#include <utility>

namespace penstock::nn {
namespace {

thread_local std::vector<const HostKernels*> host_kernels;  // The oldest comes first.

}  // namespace

HostKernels::HostKernels(Told told) : told_(std::move(told)) { host_kernels.push_back(this); }
HostKernels::~HostKernels() { std::erase(host_kernels, this); }

const HostKernels* HostKernels::here() {
  return host_kernels.empty() ? nullptr : host_kernels.back();
}

bool uses_host_kernels(const at::Tensor& tensor) {
  return tensor.is_cpu() || !host_kernels.empty();
}
bool uses_cuda_kernels(const at::Tensor& tensor) {
  return tensor.is_cuda() && host_kernels.empty();
}

}  // namespace penstock::nn
