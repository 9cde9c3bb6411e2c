// Numbers for the values that stages hand to each other, and between which ranks they go.
//
// A hop is a stage and a direction: the stage's activations to the next stage, or its gradients to
// the previous one.  Where microbatches take several ways, each way has hops of its own.  A message
// is one microbatch on a hop.  Knows homes, not order.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/plan/schedule/homes.h"
#include "penstock/schedule/schedule.h"

namespace penstock::verify {

using HopId = std::uint32_t;
using MessageId = std::uint32_t;
inline constexpr MessageId kNoMessage = static_cast<MessageId>(-1);

struct Hop {
  Rank from;
  Rank to;
  bool crosses() const { return from != to; }
};

class Hops {
 public:
  // REQUIRES: `homes` are those of the schedule's stages.
  Hops(const schedule::Schedule& schedule, const schedule::Homes& homes);

  std::size_t count() const { return hops_.size(); }
  std::size_t messages() const { return per_way_ * microbatches_; }
  const Hop& operator[](HopId hop) const { return hops_[hop]; }

  HopId hop_of(MessageId message) const {
    const auto hop = message / static_cast<HopId>(microbatches_);
    return first_of_.empty() ? hop : hop + first_of_[message % microbatches_];
  }

  // The message of a SEND, or of the RECV at its other end.
  MessageId message_of(const schedule::Action& message) const;
  // What `action` needs from another rank; kNoMessage when nothing.
  MessageId input_of(const schedule::Action& action) const;
  // What `action` makes for another rank; kNoMessage when nothing.
  MessageId output_of(const schedule::Action& action) const;

  // The two ends of a message.
  schedule::Action send_of(MessageId message) const;
  schedule::Action receive_of(MessageId message) const;

 private:
  MessageId id(std::int32_t hop, const schedule::Action& action) const {
    return static_cast<MessageId>(static_cast<std::size_t>(hop) * microbatches_ +
                                  action.microbatch->index());
  }
  MessageId crossing(std::int32_t hop, const schedule::Action& action) const {
    const MessageId message = id(hop, action);
    return hops_[hop_of(message)].crosses() ? message : kNoMessage;
  }

  std::int32_t stages_;
  std::size_t microbatches_;
  std::size_t per_way_;
  std::vector<Hop> hops_;  // Hops by way: of activations by stage, then of gradients by stage.
  std::vector<HopId> first_of_;  // First hop of each microbatch's way; empty: there is one way.
};

inline MessageId Hops::message_of(const schedule::Action& message) const {
  const std::int32_t stage = message.stage.value;
  switch (message.op) {
    case schedule::Op::SendForward:
      return id(stage, message);
    case schedule::Op::RecvForward:
      return id(stage - 1, message);
    case schedule::Op::SendBackward:
      return id(stages_ + stage, message);
    case schedule::Op::RecvBackward:
      return id(stages_ + stage + 1, message);
    case schedule::Op::Forward:
    case schedule::Op::Backward:
    case schedule::Op::BackwardInput:
    case schedule::Op::BackwardWeight:
    case schedule::Op::Unshard:
    case schedule::Op::Reshard:
    case schedule::Op::ReduceGradients:
      return kNoMessage;
  }
  return kNoMessage;
}

inline MessageId Hops::input_of(const schedule::Action& action) const {
  const std::int32_t stage = action.stage.value;
  if (action.op == schedule::Op::Forward) {
    return stage > 0 ? crossing(stage - 1, action) : kNoMessage;
  }
  const bool needs_gradient =
      action.op == schedule::Op::Backward || action.op == schedule::Op::BackwardInput;
  if (!needs_gradient || stage + 1 == stages_) return kNoMessage;
  return crossing(stages_ + stage + 1, action);
}

inline MessageId Hops::output_of(const schedule::Action& action) const {
  const std::int32_t stage = action.stage.value;
  if (action.op == schedule::Op::Forward) {
    return stage + 1 < stages_ ? crossing(stage, action) : kNoMessage;
  }
  const bool makes_gradient =
      action.op == schedule::Op::Backward || action.op == schedule::Op::BackwardInput;
  return makes_gradient && stage > 0 ? crossing(stages_ + stage, action) : kNoMessage;
}

}  // namespace penstock::verify
