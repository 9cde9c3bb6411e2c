#include "penstock/runtime/comm/host_copy.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

namespace penstock::comm {
namespace {

class CopiedBack : public Transfer {
 public:
  CopiedBack(std::unique_ptr<Transfer> transfer, at::Tensor host, at::Tensor tensor)
      : transfer_(std::move(transfer)), host_(std::move(host)), tensor_(std::move(tensor)) {}
  void wait() override {
    if (!tensor_.defined()) return;
    transfer_->wait();
    const at::NoGradGuard no_grad;
    std::exchange(tensor_, at::Tensor()).copy_(host_);
  }

 private:
  std::unique_ptr<Transfer> transfer_;
  at::Tensor host_;
  at::Tensor tensor_;  // Undefined once it has what came.
};

}  // namespace

at::Tensor host_copy(const at::Tensor& tensor, Bytes bytes) {
  const at::NoGradGuard no_grad;
  at::Tensor host = at::empty(
      tensor.sizes(),
      tensor.options().requires_grad(false).device(at::kCPU).pinned_memory(tensor.is_cuda()));
  if (bytes != Bytes::In) host.copy_(tensor);
  return host;
}

std::unique_ptr<Transfer> copied_back(std::unique_ptr<Transfer> transfer, at::Tensor host,
                                      const at::Tensor& tensor) {
  return std::make_unique<CopiedBack>(std::move(transfer), std::move(host), tensor);
}

}  // namespace penstock::comm
