// Links that carry tensors from device to device, and the streams that they take.
//
// World has one, and asks it to widen links of host memory.  Between two ranks it does so by NCCL
// (nccl/), where both have a device that NCCL takes.
// Thread safety: one thread at a time.
#pragma once
#include <c10/core/Device.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "penstock/runtime/comm/links.h"
#include "penstock/runtime/comm/nccl/nccl.h"

namespace penstock::comm {

class DeviceLinks {
 public:
  // Streams for the messages with a peer; none: they go through host memory.
  using StreamsTo = std::function<std::optional<MessageStreams>(Rank peer)>;

  // `host`, `takes`: as CudaDevice's.  With another transport than Auto, it widens none.
  DeviceLinks(Rank rank, c10::Device device, const std::string& host, c10::DeviceType takes,
              Transport transport);

  // What other ranks hear of this one's device.
  std::string introduction() const { return own_.introduction(); }
  // "NCCL 2.27.5".
  std::string transport() const;

  // Two streams of its own for each peer.
  StreamsTo own_streams() const;
  // A few for all ranks of a group (mesh/group_streams.h), of which this rank is one.
  StreamsTo shared_streams(const std::vector<Rank>& group) const;
  // What each peer's link had, but for those that were forgotten.
  StreamsTo earlier_streams() const;
  // Whether the link to `peer` is widened, or was before connections were dropped.
  bool has(Rank peer) const { return streams_.contains(peer); }
  void forget(Rank peer) { streams_.erase(peer); }

  // Lets tensors go from device to device over the link to `peer`, who calls it too, and whose
  // introduction can be asked for.  Returns: whether they could not before, and can now.
  // Throws: CommError, as connect_nccl() and CudaDevice do.
  bool widen(std::unique_ptr<Link>& link, Rank peer, const std::function<std::string()>& introduced,
             const StreamsTo& streams_to, const c10::intrusive_ptr<c10d::Store>& store,
             WaitRules& rules);

 private:
  Rank rank_;
  c10::Device device_;
  bool may_widen_;
  CudaDevice own_;
  std::map<Rank, MessageStreams> streams_;  // Streams of widened links, by peer.
};

}  // namespace penstock::comm
