// DeepSpeed's pipeline instructions, as plain values: its dialect of a rank's program.
//
// The functions of steps.h write them; whoever speaks DeepSpeed's API shows them.  They name
// buffers where an Action names a microbatch.  Knows no schedule.  An engine holds per buffer the
// inputs, the labels, the outputs and their gradients.
// Source: the instruction classes of deepspeed.runtime.pipe.schedule, by name.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::schedule::deepspeed {

enum class Kind : std::uint8_t {
  LoadMicroBatch,  // The next inputs on the first stage, the next labels on the last.
  ForwardPass,     // Outputs from inputs; on the last stage the loss, too.
  BackwardPass,    // Takes the gradients received, and adds to those of the parameters.
  SendActivation,  // Send and Recv are paired and may block.
  RecvActivation,
  SendGrad,         // Sends the inputs' gradients to the stage before.
  RecvGrad,         // Receives the outputs' gradients from the stage behind.
  ReduceTiedGrads,  // Waits for all stages that hold a tied module.
  ReduceGrads,      // Sums over the replicas, within the stage.
  OptimizerStep,    // Once, then the gradients are zero.
};
inline constexpr std::size_t kKinds = 10;

// The name of its class: "ForwardPass".
std::string_view to_string(Kind kind);
// The kind of that name, if there is one.
std::optional<Kind> find_kind(std::string_view name);

// False for what comes once, at the end: ReduceTiedGrads, ReduceGrads, OptimizerStep.
bool has_buffer(Kind kind);

struct Instruction {
  Kind kind = Kind::ForwardPass;
  std::optional<std::int32_t> buffer = {};  // Absent where !has_buffer(kind).
  friend bool operator==(const Instruction&, const Instruction&) = default;
};

// A barrier of all stages between any two successive steps cannot deadlock.
using Step = std::vector<Instruction>;

// The instruction of that name, for those who have the parts and no text.
// Throws: ScheduleError for an unknown name, with the nearest one; for a buffer where there is
// none, or none where there is one.
Instruction make_instruction(std::string_view name, std::optional<std::int32_t> buffer);

// "ForwardPass(buffer_id=1)", "OptimizerStep()".
// Law: parse_instruction(to_string(i)) == i for every valid Instruction.
std::string to_string(const Instruction& instruction);
std::ostream& operator<<(std::ostream& out, const Instruction& instruction);

// Throws: ParseError, which names the text, the column, what was expected there and what was found;
// an unknown instruction by its name, with the nearest one.
Instruction parse_instruction(std::string_view text);

}  // namespace penstock::schedule::deepspeed
