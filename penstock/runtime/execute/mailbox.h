// The messages of one plan: buffers, transfers under way, and the headers that announce forms.
//
// The executor posts and takes by instruction.  Shapes are not planned.  A header ahead of the
// first message announces what a hop carries for inputs of a form (form_numbers.h).  Every later
// message must be like it, so a wrong size never reaches the transport, where it would be fatal.
// Gradients come back in the form of what was sent: no header needed.
// A tuple is one message (form.h).  On a device, what comes alone comes to the device; a tuple is
// packed in host memory, and taken apart into the device's.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/lower/plan.h"
#include "penstock/runtime/execute/form_numbers.h"
#include "penstock/runtime/execute/packing.h"
#include "penstock/runtime/execute/progress.h"
#include "penstock/runtime/nn/values.h"

namespace penstock::execute {

class Mailbox {
 public:
  // What it takes out is on `device`.
  Mailbox(const lower::Plan& plan, comm::Communicator& communicator, Progress& progress,
          c10::Device device);

  // A step begins.  `inputs` are its microbatches on the rank of the first stage.
  void begin(const std::vector<nn::Values>& inputs);
  // Posts `values` under the instruction's name; held until await() or finish().  Of gradients, an
  // undefined one among several arrives undefined.  Returns the message's bytes.
  // Throws: Error when their form is not the one that the hop has announced; Error for the gradient
  // of a hop's only tensor when it is undefined, and for one that has no memory of its own.
  std::int64_t send(const lower::Instruction& instruction, const nn::Values& given);
  // Posts the receive, or remembers to, while the hop's form is unknown.
  void receive(const lower::Instruction& instruction);
  // The received tuple, waiting for it.  Activations require a gradient where the sender's do.
  nn::Values take(const lower::Instruction& consumer);
  void await(const lower::Instruction& instruction);
  // Waits for all sends still under way.
  void finish();

 private:
  struct Announced {
    nn::Form form;
    Packing values;
    Packing gradients;
  };
  // A boundary of one chunk to one peer; programs of several replicas have several peers at a
  // boundary.
  struct Hop {
    Rank peer;
    // Forms by the number of the inputs' form; null: not announced.
    std::vector<std::unique_ptr<Announced>> forms;
  };
  struct Slot {
    const Announced* like = nullptr;  // What `tensors` are made for.
    at::Tensor message;
    nn::Values tensors;  // Empty: made when the message has come, which lies elsewhere.
    // Kept past its end, until the slot is used again: Gloo's thread may still be inside a
    // transfer that has just woken us, and destroying it then makes both spin for a lock.
    std::unique_ptr<comm::Transfer> transfer;
    bool pending = false;
    lower::Instruction posted;
  };
  Hop& hop(const lower::Instruction& instruction);
  Slot& slot(const lower::Instruction& receive_or_consumer);
  const Announced* announced(const lower::Instruction& instruction);
  const Announced& announce(const lower::Instruction& send, const nn::Values& given);
  const Announced& learn(const lower::Instruction& receive);
  const Announced& remember(const lower::Instruction& instruction, nn::Form form);
  std::int32_t header_tag(const lower::Instruction& instruction) const;
  void forget();
  [[noreturn]] void refuse(const lower::Instruction& send, const nn::Values& values,
                           const nn::Form& announced) const;
  nn::Values parts_of(const Slot& slot, const at::Tensor& message) const;
  void lay_out(Slot& slot, const Announced& like);
  void post(Slot& slot, const Announced& like);
  void wait(comm::Transfer& transfer);

  comm::Communicator& communicator_;
  Progress& progress_;
  c10::Device device_;
  FormNumbers numbers_;
  std::int64_t generation_ = 0;
  std::vector<std::vector<Hop>> incoming_;  // Hops from the stage before, by chunk.
  std::vector<std::vector<Hop>> outgoing_;  // Hops to the stage after, by chunk.
  std::vector<std::vector<Slot>> forward_;  // Slots by chunk.
  std::vector<std::vector<Slot>> backward_;
  std::vector<std::unique_ptr<comm::Transfer>> sends_;  // Transfers by send slot.
  // This step's headers: those on their way, and those that have come, kept for the same reason.
  std::vector<std::unique_ptr<comm::Transfer>> headers_;
  std::vector<std::unique_ptr<comm::Transfer>> learned_;
};

}  // namespace penstock::execute
