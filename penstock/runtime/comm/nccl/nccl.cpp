#include "penstock/runtime/comm/nccl/nccl.h"

#include "penstock/core/check.h"

#ifdef PENSTOCK_NCCL  // cmake/nccl.cmake

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "penstock/core/error.h"
#include "penstock/core/exception_text.h"
#include "penstock/core/text.h"

namespace penstock::comm {
namespace {

// Holds the tensor until the device is done with it: the work keeps a stream's event.
class NcclTransfer : public Transfer {
 public:
  NcclTransfer(c10::intrusive_ptr<c10d::Work> work, at::Tensor tensor)
      : work_(std::move(work)), tensor_(std::move(tensor)) {}
  void wait() override { work_->wait(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  at::Tensor tensor_;
};

// A process group of its own, and so a communicator and a stream of its own: what goes one way
// does not queue behind what goes the other.
class NcclChannel : public Channel {
 public:
  NcclChannel(const c10::intrusive_ptr<c10d::Store>& store, bool sends,
              std::chrono::milliseconds timeout)
      : other_(sends ? 1 : 0) {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = timeout;
    group_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, 1 - other_, 2, options);
  }

  std::unique_ptr<Transfer> send(const at::Tensor& tensor) override {
    std::vector<at::Tensor> tensors = {tensor};
    return std::make_unique<NcclTransfer>(group_->send(tensors, other_, /*tag=*/0), tensor);
  }
  std::unique_ptr<Transfer> receive(const at::Tensor& tensor) override {
    std::vector<at::Tensor> tensors = {tensor};
    return std::make_unique<NcclTransfer>(group_->recv(tensors, other_, /*tag=*/0), tensor);
  }

 private:
  int other_;  // The sender is rank 0 of the pair.
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
};

}  // namespace

bool has_nccl() { return true; }

std::string device_identity(c10::Device device) {
  const auto& uuid = at::cuda::getDeviceProperties(device.index())->uuid.bytes;
  std::string identity;
  for (const char byte : uuid) identity += str(static_cast<int>(byte), ".");
  return identity;
}

Channels connect_nccl(const c10::intrusive_ptr<c10d::Store>& store, Rank rank, Rank peer,
                      c10::Device device, const WaitRules& rules) {
  const auto [low, high] = std::minmax(rank, peer);
  Channels channels;
  // NCCL connects with the first message, which both ends must be in: one direction, then the
  // other.
  for (const Rank sender : {low, high}) {
    const bool sends = sender == rank;
    auto& channel = sends ? channels.out : channels.in;
    const at::Tensor first = at::zeros({1}, at::TensorOptions(at::kByte).device(device));
    try {
      channel =
          std::make_unique<NcclChannel>(c10::make_intrusive<c10d::PrefixStore>(
                                            str("nccl/", low, "-", high, "/from/", sender), store),
                                        sends, rules.deadline);
      (sends ? channel->send(first) : channel->receive(first))->wait();
    } catch (const std::exception& error) {
      rules.interrupt.check();
      throw CommError(str("rank ", rank, " could not connect to rank ", peer,
                          " by NCCL: ", exception_text(error)));
    }
  }
  return channels;
}

}  // namespace penstock::comm

#else

namespace penstock::comm {

bool has_nccl() { return false; }

std::string device_identity(c10::Device device) {
  PENSTOCK_CHECK(false, "no NCCL for ", device);
  return {};
}

Channels connect_nccl(const c10::intrusive_ptr<c10d::Store>&, Rank, Rank peer, c10::Device,
                      const WaitRules&) {
  PENSTOCK_CHECK(false, "no NCCL to rank ", peer);
  return {};
}

}  // namespace penstock::comm

#endif
