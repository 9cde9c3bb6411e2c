// NCCL: channels between the CUDA devices of two ranks, where this process has its library.
//
// World makes them for links between ranks that have a device each.
#pragma once
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "penstock/runtime/comm/announced_link.h"

namespace penstock::comm {

// Multiprocessors that one message may hold while it waits for its other end, of some 130.
inline constexpr int kMultiprocessorsMax = 8;

// The device of a rank, if it is one of CUDA's, as other ranks hear of it.
class CudaDevice {
 public:
  // `host`: the same for ranks of one host.  NCCL_HOSTID in the environment, by which NCCL itself
  // tells hosts apart, goes before it: with one for each rank, ranks of one device have NCCL.
  // `takes`: the type of devices that NCCL takes.
  CudaDevice(Rank rank, c10::Device device, const std::string& host, c10::DeviceType takes);

  std::string introduction() const;
  // Whether messages to `peer`, who has introduced itself so, go from device to device: not between
  // ranks that share one, which NCCL takes for a mistake.
  // Throws: CommError where there are two devices, and NCCL is missing, or not the same on both.
  bool reaches(Rank peer, const std::string& introduction) const;
  // NCCL's version; "": this process has none.
  const std::string& nccl() const { return nccl_; }

 private:
  Rank rank_;
  std::string identity_;  // "": no device of CUDA's.
  std::string nccl_;
};

// Streams of a device, in which messages go to another rank and come from it.
struct MessageStreams {
  c10::Stream out, in;
};
c10::Stream new_stream(c10::Device device);

// Connects both directions to `peer`, who calls it too.  REQUIRES: the devices reach each other.
// Throws: CommError, after the rules' deadline.
Channels connect_nccl(const c10::intrusive_ptr<c10d::Store>& store, Rank rank, Rank peer,
                      const MessageStreams& streams, WaitRules& rules);

}  // namespace penstock::comm
