#include "penstock/runtime/execute/handed_values.h"

#include <utility>

#include "penstock/core/check.h"
#include "penstock/schedule/action.h"

namespace penstock::execute {

using lower::Instruction;
using lower::Route;

HandedValues::HandedValues(const lower::Plan& plan, comm::Communicator& communicator,
                           Progress& progress, c10::Device device)
    : plan_(plan), mailbox_(plan, communicator, progress, device) {
  const auto cells = plan.chunks.size() * static_cast<std::size_t>(plan.microbatches);
  for (Cells* const each : {&outputs_, &handed_over_, &gradients_}) each->resize(cells);
}

nn::Values& HandedValues::cell(Cells& cells, std::int32_t chunk,
                               const Instruction& instruction) const {
  return cells[static_cast<std::size_t>(chunk) * static_cast<std::size_t>(plan_.microbatches) +
               instruction.action.microbatch->index()];
}

// The chunk of this rank that holds the stage `offset` from the instruction's.
std::int32_t HandedValues::neighbour(const Instruction& instruction, std::int32_t offset) const {
  for (std::size_t chunk = 0; chunk < plan_.chunks.size(); ++chunk) {
    if (plan_.chunks[chunk].value == instruction.action.stage.value + offset) {
      return static_cast<std::int32_t>(chunk);
    }
  }
  PENSTOCK_CHECK(false, lower::to_string(instruction), " has no neighbour here");
  return 0;
}

nn::Values HandedValues::take_inputs(const Instruction& instruction) {
  if (instruction.from == Route::Message) return mailbox_.take(instruction);
  return std::move(cell(handed_over_, instruction.chunk, instruction));
}

nn::Values HandedValues::take_gradients(const Instruction& instruction) {
  if (instruction.from == Route::Message) return mailbox_.take(instruction);
  return std::move(cell(gradients_, instruction.chunk, instruction));
}

void HandedValues::hand_outputs(const Instruction& instruction, nn::Values values) {
  if (instruction.to == Route::Local) {
    cell(handed_over_, neighbour(instruction, +1), instruction) = std::move(values);
  } else {
    cell(outputs_, instruction.chunk, instruction) = std::move(values);
  }
}

void HandedValues::hand_gradients(const Instruction& instruction, nn::Values values) {
  const bool is_local = instruction.to == Route::Local;
  cell(gradients_, is_local ? neighbour(instruction, -1) : instruction.chunk, instruction) =
      std::move(values);
}

std::int64_t HandedValues::send(const Instruction& instruction) {
  const bool forward = instruction.action.op == schedule::Op::SendForward;
  nn::Values& values = cell(forward ? outputs_ : gradients_, instruction.chunk, instruction);
  const std::int64_t bytes = mailbox_.send(instruction, values);
  values.clear();
  return bytes;
}

}  // namespace penstock::execute
