#include "penstock/plan/schedule/deepspeed/trace.h"

#include <algorithm>
#include <utility>

#include "penstock/core/text.h"

namespace penstock::schedule::deepspeed {
namespace {

using Name = std::optional<Microbatch>;  // Absent: hidden by a fault.

struct Message {
  Name microbatch;
  InstructionPlace place;
};
using Messages = std::vector<Message>;

// What a buffer holds; an outer optional that is empty holds nothing.
struct Buffer {
  std::optional<Name> input;
  std::optional<Name> labels;
  std::optional<Name> output;
  std::optional<Name> output_gradient;
  std::optional<Name> input_gradient;
  bool is_sent = false;  // The output.
  InstructionPlace input_place;
  InstructionPlace labels_place;
};

std::string spell(const Name& microbatch) {
  return microbatch ? str("microbatch ", *microbatch) : "another microbatch";
}

// Follows the buffers of one stage.
class StageTrace {
 public:
  StageTrace(const SteppedSchedule& schedule, std::size_t stage, bool trains,
             const Messages& arriving, std::vector<TraceFault>& faults)
      : steps_(schedule.stages[stage]),
        trains_(trains),
        is_first_(stage == 0),
        is_last_(stage + 1 == schedule.stages.size()),
        arriving_(arriving),
        faults_(faults) {
    here_.stage = StageId(stage);
  }

  void run() {
    visit([&](const Instruction& instruction) { microbatches.push_back(follow(instruction)); });
    check_unused();
    for (std::size_t i = received_; i < arriving_.size(); ++i) {
      faults_.push_back({Fault::Unpaired, arriving_[i].place,
                         str("SendActivation is never received by stage ", here_.stage),
                         str("add a RecvActivation on stage ", here_.stage)});
    }
  }

  std::vector<Name> microbatches;
  Messages activations_sent;
  Messages gradients_sent;
  Messages gradients_received;

 private:
  template <class Visit>
  void visit(const Visit& each) {
    for (std::size_t t = 0; t < steps_.steps.size(); ++t) {
      for (std::size_t i = 0; i < steps_.steps[t].size(); ++i) {
        here_.step = static_cast<std::int32_t>(t);
        here_.index = static_cast<std::int32_t>(i);
        each(steps_.steps[t][i]);
      }
    }
  }

  void object(Fault fault, std::string message, std::string repair) {
    faults_.push_back({fault, here_, std::move(message), std::move(repair)});
  }

  // A load or a received input that no ForwardPass uses: the next iteration would begin with it.
  void check_unused() {
    const auto unused = [&](const InstructionPlace& place) {
      const Step& step = steps_.steps[static_cast<std::size_t>(place.step)];
      faults_.push_back({Fault::Unused, place,
                         str(step[static_cast<std::size_t>(place.index)], " is used by nobody"),
                         "remove it, or add the ForwardPass that uses it"});
    };
    for (const Buffer& buffer : buffers_) {
      const bool ran = !is_first_ && (buffer.output || buffer.input_gradient);
      if (buffer.input && !ran) unused(buffer.input_place);
      if (buffer.labels && !(is_first_ && buffer.input)) unused(buffer.labels_place);
    }
  }

  Name follow(const Instruction& instruction) {
    switch (instruction.kind) {
      case Kind::LoadMicroBatch:
        return load(instruction);
      case Kind::RecvActivation:
        return receive_activation(instruction);
      case Kind::ForwardPass:
        return forward(instruction);
      case Kind::SendActivation:
        return send_activation(instruction);
      case Kind::RecvGrad:
        return receive_gradient(instruction);
      case Kind::BackwardPass:
        return backward(instruction);
      case Kind::SendGrad:
        return send_gradient(instruction);
      case Kind::ReduceTiedGrads:
      case Kind::ReduceGrads:
      case Kind::OptimizerStep:
        return {};
    }
    return {};
  }

  Buffer& buffer_of(const Instruction& instruction) {
    const auto id = static_cast<std::size_t>(*instruction.buffer);
    if (id >= buffers_.size()) buffers_.resize(id + 1);
    return buffers_[id];
  }

  Name load(const Instruction& instruction) {
    Buffer& buffer = buffer_of(instruction);
    const Name next = Microbatch(loaded_++);
    if (is_first_) put_input(instruction, buffer, next);
    if (is_last_) {
      if (buffer.labels) {
        object(Fault::Overwrites,
               str(instruction, " overwrites the labels of ", spell(*buffer.labels)),
               "run the ForwardPass that needs them first, or load into another buffer");
      }
      buffer.labels = next;
      buffer.labels_place = here_;
    }
    return next;
  }

  Name receive_activation(const Instruction& instruction) {
    Name microbatch;
    if (received_ < arriving_.size()) {
      microbatch = arriving_[received_].microbatch;
    } else {
      object(Fault::Unpaired, str(instruction, " is sent by nobody"),
             str("add a SendActivation on stage ", here_.stage.value - 1));
    }
    ++received_;
    put_input(instruction, buffer_of(instruction), microbatch);
    return microbatch;
  }

  // Puts an input into a buffer.  In training the input of a stage is of use until its gradient has
  // left.  The first stage's has no gradient, so until it has run forward.
  void put_input(const Instruction& instruction, Buffer& buffer, const Name& microbatch) {
    if (buffer.input) {
      object(Fault::Overwrites,
             str(instruction, " overwrites the input of ", spell(*buffer.input), ": ",
                 use_of_input(buffer)),
             "put that first, or use another buffer");
    }
    buffer.input = microbatch;
    buffer.input_place = here_;
  }

  std::string_view use_of_input(const Buffer& buffer) const {
    if (is_first_) return "it is still to run forward";
    if (buffer.input_gradient) return "its gradient is still to be sent";
    if (!buffer.output) return "it is still to run forward";
    return buffer.is_sent || is_last_ ? "it is still to run backward"
                                      : "its output is still to be sent";
  }

  Name forward(const Instruction& instruction) {
    Buffer& buffer = buffer_of(instruction);
    if (!buffer.input) {
      object(Fault::NothingThere, str(instruction, " finds no input in its buffer"),
             is_first_ ? "put a LoadMicroBatch before it" : "put a RecvActivation before it");
      buffer.input = Name();
    }
    if (buffer.output) {
      object(Fault::Overwrites,
             str(instruction, " overwrites the output of ", spell(*buffer.output)),
             buffer.is_sent || is_last_ ? "put its BackwardPass first, or use another buffer"
                                        : "put its SendActivation first, or use another buffer");
    }
    const Name microbatch = *buffer.input;
    if (is_last_) check_labels(instruction, buffer, microbatch);
    if (trains_ || !is_last_) buffer.output = microbatch;
    buffer.is_sent = false;
    if (!trains_ || is_first_) buffer.input.reset();
    return microbatch;
  }

  void check_labels(const Instruction& instruction, Buffer& buffer, const Name& microbatch) {
    if (!buffer.labels) {
      object(Fault::NothingThere, str(instruction, " finds no labels in its buffer"),
             "put a LoadMicroBatch before it: the last stage loads the labels");
    } else if (*buffer.labels && microbatch && *buffer.labels != microbatch && !mislabeled_) {
      mislabeled_ = true;
      object(Fault::OtherMicrobatch,
             str(instruction, " has the input of ", spell(microbatch), " and the labels of ",
                 spell(*buffer.labels)),
             "load in the order in which inputs arrive");
    }
    buffer.labels.reset();
  }

  Name send_activation(const Instruction& instruction) {
    Buffer& buffer = buffer_of(instruction);
    const Name microbatch = buffer.output.value_or(Name());
    if (!buffer.output || buffer.is_sent) {
      object(Fault::NothingThere, str(instruction, " finds no output to send in its buffer"),
             "put a ForwardPass before it");
    }
    buffer.is_sent = true;
    if (!trains_) buffer.output.reset();
    activations_sent.push_back({microbatch, here_});
    return microbatch;
  }

  Name receive_gradient(const Instruction& instruction) {
    Buffer& buffer = buffer_of(instruction);
    if (!buffer.output) {
      object(Fault::NothingThere, str(instruction, " finds no output in its buffer"),
             "receive a gradient into the buffer of the output that it is of");
      buffer.output = Name();
    }
    if (buffer.output_gradient) {
      object(Fault::Overwrites,
             str(instruction, " overwrites the gradient of ", spell(*buffer.output_gradient)),
             "put its BackwardPass first, or use another buffer");
    }
    buffer.output_gradient = *buffer.output;
    gradients_received.push_back({*buffer.output, here_});
    return *buffer.output;
  }

  Name backward(const Instruction& instruction) {
    Buffer& buffer = buffer_of(instruction);
    const Name microbatch = buffer.output.value_or(Name());
    if (!buffer.output) {
      object(Fault::NothingThere, str(instruction, " finds no output in its buffer"),
             "put a ForwardPass before it");
    } else if (!is_last_ && !buffer.output_gradient) {
      object(Fault::NothingThere, str(instruction, " finds no gradient in its buffer"),
             "put a RecvGrad before it");
    }
    if (buffer.input_gradient) {
      object(Fault::Overwrites,
             str(instruction, " overwrites the gradient of ", spell(*buffer.input_gradient)),
             "put its SendGrad first, or use another buffer");
    }
    buffer.output.reset();
    buffer.output_gradient.reset();
    if (!is_first_) buffer.input_gradient = microbatch;
    return microbatch;
  }

  Name send_gradient(const Instruction& instruction) {
    Buffer& buffer = buffer_of(instruction);
    const Name microbatch = buffer.input_gradient.value_or(Name());
    if (!buffer.input_gradient) {
      object(Fault::NothingThere, str(instruction, " finds no gradient to send in its buffer"),
             "put a BackwardPass before it");
    }
    // Unequal: the input was overwritten.
    if (buffer.input == buffer.input_gradient) buffer.input.reset();
    buffer.input_gradient.reset();
    gradients_sent.push_back({microbatch, here_});
    return microbatch;
  }

  const StageSteps& steps_;
  bool trains_;
  bool is_first_;
  bool is_last_;
  const Messages& arriving_;  // Activations, in order.
  std::vector<TraceFault>& faults_;
  InstructionPlace here_;
  std::vector<Buffer> buffers_;
  std::int32_t loaded_ = 0;
  std::size_t received_ = 0;
  bool mislabeled_ = false;  // What follows is likely to be shifted, too: said once.
};

// The gradients that stage s sends are those that the stage before it takes them for.
void check_gradients(const Messages& sent, const Messages& received,
                     std::vector<TraceFault>& faults) {
  for (std::size_t i = 0; i < std::max(sent.size(), received.size()); ++i) {
    if (i >= received.size()) {
      faults.push_back({Fault::Unpaired, sent[i].place, "SendGrad is never received",
                        str("add a RecvGrad on stage ", sent[i].place.stage.value - 1)});
    } else if (i >= sent.size()) {
      faults.push_back({Fault::Unpaired, received[i].place, "RecvGrad is sent by nobody",
                        str("add a SendGrad on stage ", received[i].place.stage.value + 1)});
    } else if (sent[i].microbatch && received[i].microbatch &&
               *sent[i].microbatch != *received[i].microbatch) {
      faults.push_back({Fault::OtherMicrobatch, received[i].place,
                        str("RecvGrad brings the gradient of ", spell(sent[i].microbatch),
                            " to the output of ", spell(received[i].microbatch)),
                        "receive gradients in the order in which they are sent"});
      return;  // What follows is likely to be shifted, too.
    }
  }
}

}  // namespace

bool trains(const SteppedSchedule& schedule) {
  const auto is_backward = [](const Instruction& i) { return i.kind == Kind::BackwardPass; };
  const auto has_backward = [&](const Step& step) {
    return std::ranges::any_of(step, is_backward);
  };
  return std::ranges::any_of(schedule.stages, [&](const StageSteps& stage) {
    return std::ranges::any_of(stage.steps, has_backward);
  });
}

Trace trace(const SteppedSchedule& schedule) {
  Trace result{.microbatches = {}, .faults = misplaced(schedule)};
  if (!result.faults.empty()) return result;
  const bool training = trains(schedule);
  Messages arriving;
  Messages expected;  // The gradients that the stage before receives.
  for (std::size_t s = 0; s < schedule.stages.size(); ++s) {
    StageTrace stage(schedule, s, training, arriving, result.faults);
    stage.run();
    if (s > 0) check_gradients(stage.gradients_sent, expected, result.faults);
    arriving = std::move(stage.activations_sent);
    expected = std::move(stage.gradients_received);
    result.microbatches.push_back(std::move(stage.microbatches));
  }
  return result;
}

}  // namespace penstock::schedule::deepspeed
