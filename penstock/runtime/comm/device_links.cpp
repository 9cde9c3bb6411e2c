#include "penstock/runtime/comm/device_links.h"

#include <algorithm>
#include <utility>

#include "penstock/core/mesh/group_streams.h"
#include "penstock/core/text.h"

namespace penstock::comm {
namespace {

// Streams of a group, made when they are first asked for.
class GroupStreams {
 public:
  GroupStreams(c10::Device device, Rank own, std::vector<Rank> ranks)
      : device_(device), ranks_(std::move(ranks)), here_(place(own)) {}

  MessageStreams to(Rank peer) {
    const auto size = static_cast<std::int32_t>(ranks_.size());
    const std::int32_t there = place(peer);
    return {.out = stream(true, mesh::stream_of(here_, there, size)),
            .in = stream(false, mesh::stream_of(there, here_, size))};
  }

 private:
  std::int32_t place(Rank rank) const {
    return static_cast<std::int32_t>(std::ranges::find(ranks_, rank) - ranks_.begin());
  }
  c10::Stream stream(bool sends, std::int32_t number) {
    const std::pair key(sends, number);
    const auto known = made_.find(key);
    return known != made_.end() ? known->second
                                : made_.emplace(key, new_stream(device_)).first->second;
  }

  c10::Device device_;
  std::vector<Rank> ranks_;
  std::int32_t here_;
  std::map<std::pair<bool, std::int32_t>, c10::Stream> made_;  // Streams by direction and number.
};

}  // namespace

DeviceLinks::DeviceLinks(Rank rank, c10::Device device, const std::string& host,
                         c10::DeviceType takes, Transport transport)
    : rank_(rank),
      device_(device),
      may_widen_(transport == Transport::Auto && device.type() == takes),
      own_(rank, device, host, takes) {}

std::string DeviceLinks::transport() const { return str("NCCL ", own_.nccl()); }

DeviceLinks::StreamsTo DeviceLinks::own_streams() const {
  return [this](Rank) {
    return MessageStreams{.out = new_stream(device_), .in = new_stream(device_)};
  };
}

DeviceLinks::StreamsTo DeviceLinks::shared_streams(const std::vector<Rank>& group) const {
  const auto streams = std::make_shared<GroupStreams>(device_, rank_, group);
  return [streams](Rank peer) { return streams->to(peer); };
}

DeviceLinks::StreamsTo DeviceLinks::earlier_streams() const {
  return [this](Rank peer) {
    const auto streams = streams_.find(peer);
    return streams == streams_.end() ? std::nullopt : std::optional(streams->second);
  };
}

bool DeviceLinks::widen(std::unique_ptr<Link>& link, Rank peer,
                        const std::function<std::string()>& introduced, const StreamsTo& streams_to,
                        const c10::intrusive_ptr<c10d::Store>& store, WaitRules& rules) {
  if (!may_widen_ || link->takes_device_memory() || !own_.reaches(peer, introduced())) return false;
  const std::optional<MessageStreams> streams = streams_to(peer);
  if (!streams) return false;
  Channels channels = connect_nccl(store, rank_, peer, *streams, rules);
  link = make_announced_link(std::move(link), std::move(channels), device_);
  streams_.insert_or_assign(peer, *streams);
  return true;
}

}  // namespace penstock::comm
