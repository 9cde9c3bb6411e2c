// What the instructions of a step hand to each other: inputs and outputs of stages, and gradients.
//
// The executor asks it for what an instruction computes on, and gives it what comes out.  A value
// goes to another stage of this rank, or into a message (mailbox.h).  Computes nothing.
// Thread safety: instructions of one pair may call it on two threads, for cells of their own; one
// of them at a time takes.
#pragma once
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/lower/plan.h"
#include "penstock/runtime/execute/mailbox.h"
#include "penstock/runtime/execute/progress.h"
#include "penstock/runtime/nn/values.h"

namespace penstock::execute {

class HandedValues {
 public:
  // Values are taken out on `device`.
  HandedValues(const lower::Plan& plan, comm::Communicator& communicator, Progress& progress,
               c10::Device device);

  Mailbox& mailbox() { return mailbox_; }

  // What a forward, or a backward, computes on, unless it is of the batch.
  nn::Values take_inputs(const lower::Instruction& instruction);
  nn::Values take_gradients(const lower::Instruction& instruction);
  // What comes out of it, unless that is of the batch.
  void hand_outputs(const lower::Instruction& instruction, nn::Values values);
  void hand_gradients(const lower::Instruction& instruction, nn::Values values);
  // Returns: the message's bytes.
  std::int64_t send(const lower::Instruction& instruction);

 private:
  using Cells = std::vector<nn::Values>;  // Tuples by chunk and microbatch.

  nn::Values& cell(Cells& cells, std::int32_t chunk, const lower::Instruction& instruction) const;
  std::int32_t neighbour(const lower::Instruction& instruction, std::int32_t offset) const;

  const lower::Plan& plan_;
  Mailbox mailbox_;
  Cells outputs_;      // Outputs to send on.
  Cells handed_over_;  // Inputs made by the stage before, on this rank.
  Cells gradients_;    // Gradients to send back, or, local, of this chunk's outputs.
};

}  // namespace penstock::execute
