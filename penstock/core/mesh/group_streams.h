// Streams of a device for the messages of a group, in which each rank sends to each other one.
//
// A kernel that sends or receives holds a part of its device until the other end has begun, and
// those of one stream wait for each other.  So what a group may hold has a bound, however many
// ranks it has.  comm/ takes the streams, lower/device_proof.h proves what they can do to it.
#pragma once
#include <cstdint>

namespace penstock::mesh {

// Each way.  A group of seven ranks has a stream for each of the others.
inline constexpr std::int32_t kGroupStreams = 6;

// The stream, at both ends, of what the group's rank at place `from` sends to the one at `to`: that
// of the distance between them.  REQUIRES: two places below `size`.
inline constexpr std::int32_t stream_of(std::int32_t from, std::int32_t to, std::int32_t size) {
  return ((to - from + size) % size - 1) % kGroupStreams;
}

}  // namespace penstock::mesh
