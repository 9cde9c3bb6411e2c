// What ranks give their devices in a step: kernels, messages and waits, stream by stream.
//
// A rank's device has a stream that computes, and one for each direction between it and a neighbour
// of the pipeline; messages between replicas share some (mesh/group_streams.h, comm/nccl/).  What
// is written out is what executor, mailbox, sums and gathers do: a send goes behind the kernels
// given so far, and is announced on the host.  A receive goes behind those that were given when it
// was posted, once it is announced and its tensor is needed; those of replicas, once all have sent.
// device_proof.h replays it.  Pages of ZeRO 3 are written out as one fetch of all of a stage's
// before each of its passes.
#pragma once
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/lower/plan.h"
#include "penstock/mesh/mesh.h"
#include "penstock/partition/ownership.h"

namespace penstock::lower {

struct DeviceCall {
  enum class Does : std::uint8_t {
    Compute,
    Send,         // Announces the message, and sends it behind what computes so far.
    Post,         // What it brings may be written behind what computes so far.
    Begin,        // The host waits for it to be announced; receives it, and all before it there.
    Await,        // What computes from now on comes behind this rank's end of the message.
    AwaitDevice,  // The host waits for what computes.
    Meet,         // The host waits for the other ranks of a group.
  };
  Does does = Does::Compute;
  std::int32_t what = 0;   // Message, or group.
  std::int32_t place = 0;  // Its name among the order's places.
};

// A stream of messages.
struct DeviceStream {
  bool sends = false;
  std::optional<Rank> neighbour = {};  // None: of replicas.
  std::int32_t number = 0;             // The replicas' stream.
  friend auto operator<=>(const DeviceStream&, const DeviceStream&) = default;
};

struct DeviceMessage {
  Rank from, to;
  // The number of its streams at both ends, if both are replicas of a stage.
  std::optional<std::int32_t> of_replicas = {};

  // The stream of the rank that sends it, or of the one that receives it.
  DeviceStream stream(bool sends) const {
    if (of_replicas) return {.sends = sends, .number = *of_replicas};
    return {.sends = sends, .neighbour = sends ? to : from};
  }
  Rank other(Rank rank) const { return rank == from ? to : from; }
};

struct DeviceOrder {
  std::vector<std::vector<DeviceCall>> ranks;  // Calls of each host, in its order.
  std::vector<DeviceMessage> messages;
  std::vector<std::vector<Rank>> groups;
  std::vector<std::string> places;  // "0B3", "sum 2 of stage 1".

  // Streams with messages on each rank.
  std::vector<std::int32_t> message_streams() const;
};

// What a run adds to a schedule.
struct DeviceTraffic {
  partition::SharingRules sharing;  // What replicas share.
  // Gradients' sums of each stage, and as many pages; 0 where there is one replica.
  std::vector<std::int32_t> sums;
  // Whether a RECV posts its receive: not before the ranks know what a message looks like, in the
  // first step.
  bool knows_forms = true;
};

// Writes a training step out.  REQUIRES: a schedule of one replica, with messages, and ranks that
// share no layers.
DeviceOrder device_order(const verify::VerifiedSchedule& schedule,
                         const partition::Partition& partition, const mesh::Mesh& mesh,
                         const DeviceTraffic& traffic);

}  // namespace penstock::lower
