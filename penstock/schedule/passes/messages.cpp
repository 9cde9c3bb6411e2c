#include "penstock/schedule/passes/messages.h"

#include "penstock/core/check.h"

namespace penstock::schedule {
namespace {

// The direction in which a compute action takes and hands on values: +1 to later stages, -1 to
// earlier ones, 0 when it stays on its stage.
std::int32_t direction_of(Op op) {
  if (op == Op::Forward) return 1;
  return op == Op::Backward || op == Op::BackwardInput ? -1 : 0;
}

}  // namespace

Messages::Messages(const Schedule& schedule)
    : rank_of_(static_cast<std::size_t>(schedule.stages), 0),
      microbatches_(static_cast<std::size_t>(schedule.microbatches)) {
  for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
    for (const Action& action : schedule.programs[rank]) rank_of_[action.stage.index()] = rank;
  }
}

std::optional<Action> Messages::crossing(const Action& compute, std::int32_t offset, Op op) const {
  const StageId other(compute.stage.value + offset);
  const bool exists = offset != 0 && other.value >= 0 && other.index() < rank_of_.size();
  if (!exists || rank_of_[other.index()] == rank_of(compute)) return {};
  return Action{.stage = compute.stage, .op = op, .microbatch = compute.microbatch};
}

std::optional<Action> Messages::sent_after(const Action& compute) const {
  const std::int32_t direction = direction_of(compute.op);
  return crossing(compute, direction, direction > 0 ? Op::SendForward : Op::SendBackward);
}

std::optional<Action> Messages::received_before(const Action& compute) const {
  const std::int32_t direction = direction_of(compute.op);
  return crossing(compute, -direction, direction > 0 ? Op::RecvForward : Op::RecvBackward);
}

std::size_t Messages::number(const Action& message) const {
  const Action receive = is_send(message.op) ? other_end(message) : message;
  PENSTOCK_CHECK(is_receive(receive.op), message, " is no message");
  const std::size_t direction = receive.op == Op::RecvForward ? 0 : 1;
  return (direction * rank_of_.size() + receive.stage.index()) * microbatches_ +
         receive.microbatch->index();
}

}  // namespace penstock::schedule
