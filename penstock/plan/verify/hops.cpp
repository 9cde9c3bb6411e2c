#include "penstock/plan/verify/hops.h"

#include "penstock/core/check.h"

namespace penstock::verify {

using schedule::Action;
using schedule::Op;

Hops::Hops(const schedule::Schedule& schedule, const schedule::Homes& homes)
    : stages_(schedule.stages),
      microbatches_(static_cast<std::size_t>(schedule.microbatches)),
      per_way_(2 * static_cast<std::size_t>(schedule.stages)) {
  PENSTOCK_CHECK(homes.stages() == static_cast<std::size_t>(stages_), homes.stages(), " stages");
  for (std::size_t way = 0; way < homes.ways(); ++way) {
    const auto rank_of = [&](std::int32_t stage) {  // The ends of the pipe stay where they are.
      const std::int32_t inside = stage < 0 ? 0 : stage < stages_ ? stage : stages_ - 1;
      return homes.on_way(way, StageId(inside).index());
    };
    for (std::int32_t s = 0; s < stages_; ++s) hops_.push_back({rank_of(s), rank_of(s + 1)});
    for (std::int32_t s = 0; s < stages_; ++s) hops_.push_back({rank_of(s), rank_of(s - 1)});
  }
  for (std::size_t m = 0; homes.ways() > 1 && m < microbatches_; ++m) {
    first_of_.push_back(static_cast<HopId>(homes.way_of(m) * per_way_));
  }
  PENSTOCK_CHECK(messages() < kNoMessage, messages(), " messages");
}

Action Hops::send_of(MessageId message) const {
  const auto hop = static_cast<std::int32_t>(message / microbatches_);
  const Microbatch microbatch(static_cast<std::size_t>(message) % microbatches_);
  if (hop < stages_) {
    return {.stage = StageId(hop), .op = Op::SendForward, .microbatch = microbatch};
  }
  return {.stage = StageId(hop - stages_), .op = Op::SendBackward, .microbatch = microbatch};
}

Action Hops::receive_of(MessageId message) const { return schedule::other_end(send_of(message)); }

}  // namespace penstock::verify
