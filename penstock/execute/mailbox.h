// The messages of one plan: buffers, transfers under way, and the header that announces a shape.
//
// The executor posts and takes by instruction.  Shapes are not planned: the first message of each
// hop is preceded by a header of fixed size, and every later message must have the same shape, so a
// wrong size never reaches the transport, where it would be fatal.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/execute/progress.h"
#include "penstock/lower/plan.h"

namespace penstock::execute {

class Mailbox {
 public:
  Mailbox(const lower::Plan& plan, comm::Communicator& communicator, Progress& progress);

  // Posts `value` under the instruction's name; held until await() or finish().
  // Throws: Error when its shape or type differs from the hop's first message.
  void send(const lower::Instruction& instruction, const at::Tensor& value);
  // Posts the receive, or remembers to, while the hop's shape is unknown.
  void receive(const lower::Instruction& instruction);
  // The received value, waiting for it.
  at::Tensor take(const lower::Instruction& consumer);
  void await(const lower::Instruction& instruction);
  // Gradients come back in the shape of what was sent: no header needed.
  void expect_gradient_like(std::int32_t chunk, const at::Tensor& output);
  // Waits for all sends still under way.
  void finish();

 private:
  struct Hop {  // One direction of one chunk.
    std::vector<std::int64_t> sizes;
    at::ScalarType dtype = at::kFloat;
    bool known = false;
  };
  struct Slot {
    at::Tensor buffer;
    // Kept past its end, until the slot is used again: Gloo's thread may still be inside a
    // transfer that has just woken us, and destroying it then makes both spin for a lock.
    std::unique_ptr<comm::Transfer> transfer;
    bool pending = false;
    lower::Instruction posted;
  };
  Hop& hop(std::int32_t chunk, bool forward, bool incoming);
  Slot& slot(const lower::Instruction& receive_or_consumer, bool forward);
  void post(Slot& slot, const Hop& hop);
  void announce(const lower::Instruction& instruction, const at::Tensor& value, Hop& hop);
  void learn(const lower::Instruction& receive, Hop& hop);
  void wait(comm::Transfer& transfer);

  comm::Communicator& communicator_;
  Progress& progress_;
  std::vector<Hop> hops_;                   // Four a chunk.
  std::vector<std::vector<Slot>> forward_;  // By chunk, then slot.
  std::vector<std::vector<Slot>> backward_;
  std::vector<std::unique_ptr<comm::Transfer>> sends_;  // By send slot.
};

}  // namespace penstock::execute
