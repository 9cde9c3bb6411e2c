// Proves that nothing that ranks give their devices waits for ever.
//
// A kernel that sends or receives holds multiprocessors until the other end has begun.  What has
// too few takes what is left.  Any other kernel needs one.
//
// The proof has two halves.  The replay lets hosts run ahead, begins sends before receives and
// these before anything ends, and computes last: what hangs then is refused, with the circle. Where
// all streams of a rank may wait at once and leave a multiprocessor, no other order can hang
// either: then what can begin depends on no order. Cost: kernels and messages, times streams.
#pragma once
#include <cstdint>
#include <string>

#include "penstock/plan/lower/device_order.h"

namespace penstock::lower {

struct Multiprocessors {
  std::int32_t of_device = 132;
  std::int32_t held = 8;  // What a kernel that sends or receives takes.
};

struct DeviceProof {
  // What hangs, with its code; empty: nothing does in the order of the replay.
  std::string objection;
  // The most multiprocessors that waiting kernels of a rank may hold, and whether one is always
  // left.
  std::int32_t held_max = 0;
  bool is_of_every_order = false;
};

DeviceProof prove(const DeviceOrder& order, const Multiprocessors& multiprocessors);

}  // namespace penstock::lower
