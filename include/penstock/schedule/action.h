// One step of a pipeline schedule, as a plain value.
//
// A rank's program is a std::vector<Action>: generators write it, verify checks it, simulate prices
// it, lower turns it into a Plan.  No tensors, no process groups here.
// Text form (golden files, traces, error messages): stage, op, microbatch: "2F0", "1SEND_F3".
//
// A forward and a backward that run together, so that the messages inside one hide behind the
// other, are two neighbours of the program.  The F is marked `overlaps_next`.  Their text is one
// cell, "(0F4;3B2)OVERLAP_F_B".  A bit and not an action that holds actions, because nearly every
// rule is about each half alone: what it needs, makes, keeps alive and must not repeat.  Only those
// who care about time (simulate, the send/recv pass, the replay of verify) look at the bit.
// Source: the grammar of torch.distributed.pipelining `_Action`, so that programs diff as text; an
// I or a W in the place of the B is ours.
#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/ids.h"

namespace penstock::schedule {

enum class Op : std::uint8_t {
  Forward,          // F
  Backward,         // B: gradients of the stage's input and of its weights.
  BackwardInput,    // I: the gradient of the stage's input only; a W follows some time.
  BackwardWeight,   // W: the gradients of the stage's weights, the other half of a split B.
  SendForward,      // SEND_F: this stage's output to the next stage.
  RecvForward,      // RECV_F: this stage's input from the previous stage.
  SendBackward,     // SEND_B: the gradient of this stage's input to the previous stage.
  RecvBackward,     // RECV_B: the gradient of this stage's output from the next stage.
  Unshard,          // UNSHARD: gather this stage's weights from the data ranks.
  Reshard,          // RESHARD: drop the gathered weights, keep the own shard.
  ReduceGradients,  // REDUCE_GRAD: sum this stage's weight gradients over the data ranks; those of
                    // one microbatch where it names one.
};
inline constexpr std::size_t kOps = 11;

struct Action {
  StageId stage;  // The acting stage: the sender of a SEND, the receiver of a RECV.
  Op op = Op::Forward;
  bool overlaps_next = false;          // F only: runs together with the B, I or W right behind it.
  OptionalMicrobatch microbatch = {};  // Present as has_ and may_have_microbatch(op) say.
  friend auto operator<=>(const Action&, const Action&) = default;
};
static_assert(sizeof(Action) <= 12, "large programs have tens of millions: keep them packed");

using Program = std::vector<Action>;  // What one rank does, in order.

// B, I or W.
inline bool is_backward(Op op) {
  return op == Op::Backward || op == Op::BackwardInput || op == Op::BackwardWeight;
}
// F, B, I or W: what occupies a rank.
inline bool is_compute(Op op) { return op == Op::Forward || is_backward(op); }
inline bool is_send(Op op) { return op == Op::SendForward || op == Op::SendBackward; }
inline bool is_receive(Op op) { return op == Op::RecvForward || op == Op::RecvBackward; }
// False for what a stage does for all microbatches: UNSHARD, RESHARD, REDUCE_GRAD.
inline bool has_microbatch(Op op) {
  return op != Op::Unshard && op != Op::Reshard && op != Op::ReduceGradients;
}
// True for REDUCE_GRAD too, which is of all microbatches ("2REDUCE_GRAD") or of one
// ("2REDUCE_GRAD3").
inline bool may_have_microbatch(Op op) { return has_microbatch(op) || op == Op::ReduceGradients; }

std::string_view to_string(Op op);

// Inverse of parse_action: parse_action(to_string(a)) == a for every valid Action that does not
// overlap the next; of one that does, it is the text of the F alone.
std::string to_string(const Action& action);
std::ostream& operator<<(std::ostream& out, const Action& action);

// Throws: ParseError, which names the text, the column, and what was expected there.
Action parse_action(std::string_view text);

// What starts together: the action at `i` alone, or the overlapped pair that it begins.
inline std::span<const Action> unit_at(const Program& program, std::size_t i) {
  const bool pair = program[i].overlaps_next && i + 1 < program.size();
  return std::span(program).subspan(i, pair ? 2 : 1);
}

// Appends the text of a unit: a cell of a CSV row.
void append_cell(std::string& text, std::span<const Action> unit);

// The program as cells of a CSV row, an overlapped pair in one cell.
std::vector<std::string> to_cells(const Program& program);

// Appends the one action of a cell, or the two of an overlapped pair.  Parsing the cells of a
// program in turn gives the program again.
// Throws: ParseError as parse_action.
void parse_cell(std::string_view text, Program& program);

// The SEND on the other end of a RECV, and the other way round: 1RECV_F3 <-> 0SEND_F3.
// REQUIRES: is_send(action.op) or is_receive(action.op).
Action other_end(const Action& action);

[[noreturn]] void no_other_end(const Action& action);  // A failed check.

inline Action other_end(const Action& action) {
  Action other = action;
  switch (action.op) {
    case Op::SendForward:
      ++other.stage.value;
      other.op = Op::RecvForward;
      return other;
    case Op::RecvForward:
      --other.stage.value;
      other.op = Op::SendForward;
      return other;
    case Op::SendBackward:
      --other.stage.value;
      other.op = Op::RecvBackward;
      return other;
    case Op::RecvBackward:
      ++other.stage.value;
      other.op = Op::SendBackward;
      return other;
    case Op::Forward:
    case Op::Backward:
    case Op::BackwardInput:
    case Op::BackwardWeight:
    case Op::Unshard:
    case Op::Reshard:
    case Op::ReduceGradients:
      break;
  }
  no_other_end(action);
}

}  // namespace penstock::schedule
