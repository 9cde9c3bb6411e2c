// The values of a schedule that cross ranks, as the messages that carry them.
//
// The passes that place messages, and those that ask what must run before what on another rank,
// read it.  Knows neither the order of the programs nor where messages stand in them.
#pragma once
#include <cstddef>
#include <optional>

#include "penstock/plan/schedule/homes.h"
#include "penstock/schedule/schedule.h"

namespace penstock::schedule {

class Messages {
 public:
  // REQUIRES, here and below: stages and microbatches in range.
  explicit Messages(const Schedule& schedule);

  // The SEND of what a compute action makes, if a stage on another rank needs it.
  std::optional<Action> sent_after(const Action& compute) const {
    const std::int32_t direction = direction_of(compute.op);
    return crossing(compute, direction, direction > 0 ? Op::SendForward : Op::SendBackward);
  }
  // The RECV of what a compute action needs, if a stage on another rank makes it.
  std::optional<Action> received_before(const Action& compute) const {
    const std::int32_t direction = direction_of(compute.op);
    return crossing(compute, -direction, direction > 0 ? Op::RecvForward : Op::RecvBackward);
  }

  // The rank that runs a SEND or RECV, and that of its other end.
  std::size_t rank_of(const Action& action) const { return homes_.of(action).index(); }
  std::size_t peer_of(const Action& message) const { return rank_of(other_end(message)); }

  // A number for each message, in [0, count()), the same for its SEND and its RECV.
  // REQUIRES: a SEND or a RECV.
  std::size_t number(const Action& message) const {
    const bool forward = message.op == Op::SendForward || message.op == Op::RecvForward;
    const std::int32_t receiver = message.stage.value + (is_receive(message.op) ? 0
                                                         : forward              ? 1
                                                                                : -1);
    return ((forward ? 0 : homes_.stages()) + StageId(receiver).index()) * microbatches_ +
           message.microbatch->index();
  }
  std::size_t count() const { return 2 * homes_.stages() * microbatches_; }

 private:
  // The direction in which a compute action hands on values: +1 to later stages, -1 to earlier
  // ones, 0: it keeps them.
  static std::int32_t direction_of(Op op) {
    if (op == Op::Forward) return 1;
    return op == Op::Backward || op == Op::BackwardInput ? -1 : 0;
  }

  std::optional<Action> crossing(const Action& compute, std::int32_t offset, Op op) const {
    const StageId other(compute.stage.value + offset);
    const bool exists = offset != 0 && other.value >= 0 && other.index() < homes_.stages();
    if (!exists || homes_.of(other, *compute.microbatch) == homes_.of(compute)) return {};
    return Action{.stage = compute.stage, .op = op, .microbatch = compute.microbatch};
  }

  Homes homes_;
  std::size_t microbatches_;
};

}  // namespace penstock::schedule
