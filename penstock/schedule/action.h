// One step of a pipeline schedule, as a plain value.
//
// A rank's program is a std::vector<Action>: generators write it, verify checks it, simulate prices
// it, lower turns it into a Plan.  No tensors, no process groups here.
// Text form (golden files, traces, error messages): stage, op, microbatch: "2F0", "1SEND_F3".
// Source: the grammar of torch.distributed.pipelining `_Action`, so that programs diff as text.
#pragma once
#include <compare>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/ids.h"

namespace penstock::schedule {

enum class Op : std::uint8_t {
  Forward,          // F
  Backward,         // B: gradients of the stage's input and of its weights.
  SendForward,      // SEND_F: this stage's output to the next stage.
  RecvForward,      // RECV_F: this stage's input from the previous stage.
  SendBackward,     // SEND_B: the gradient of this stage's input to the previous stage.
  RecvBackward,     // RECV_B: the gradient of this stage's output from the next stage.
  ReduceGradients,  // REDUCE_GRAD: sum this stage's weight gradients over the data ranks.
};

struct Action {
  StageId stage;  // The acting stage: the sender of a SEND, the receiver of a RECV.
  Op op = Op::Forward;
  std::optional<Microbatch> microbatch;  // Absent for ReduceGradients only.
  friend auto operator<=>(const Action&, const Action&) = default;
};

using Program = std::vector<Action>;  // What one rank does, in order.

inline bool is_compute(Op op) { return op == Op::Forward || op == Op::Backward; }
inline bool is_send(Op op) { return op == Op::SendForward || op == Op::SendBackward; }
inline bool is_receive(Op op) { return op == Op::RecvForward || op == Op::RecvBackward; }

std::string_view to_string(Op op);

// Inverse of parse_action: parse_action(to_string(a)) == a for every valid Action.
std::string to_string(const Action& action);
std::ostream& operator<<(std::ostream& out, const Action& action);

// Throws: ParseError, which names the text, the column, and what was expected there.
Action parse_action(std::string_view text);

// The SEND on the other end of a RECV, and the other way round: 1RECV_F3 <-> 0SEND_F3.
// REQUIRES: is_send(action.op) or is_receive(action.op).
Action other_end(const Action& action);

}  // namespace penstock::schedule
