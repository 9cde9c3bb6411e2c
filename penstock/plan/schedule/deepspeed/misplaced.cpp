#include <algorithm>
#include <utility>

#include "penstock/core/text.h"
#include "penstock/plan/schedule/deepspeed/trace.h"

namespace penstock::schedule::deepspeed {
namespace {

// Bounds memory: a file can name any number.
constexpr std::int32_t kBuffersMax = 1 << 20;

// Instructions that their stage has no use, no neighbour or no buffer for.
class Places {
 public:
  explicit Places(const SteppedSchedule& schedule) : schedule_(schedule) {}

  std::vector<TraceFault> check() {
    for (std::size_t s = 0; s < schedule_.stages.size(); ++s) {
      const auto& steps = schedule_.stages[s].steps;
      for (std::size_t t = 0; t < steps.size(); ++t) {
        for (std::size_t i = 0; i < steps[t].size(); ++i) {
          here_ = {StageId(s), static_cast<std::int32_t>(t), static_cast<std::int32_t>(i)};
          check_stage(steps[t][i]);
          check_buffer(steps[t][i]);
        }
      }
    }
    return std::move(faults_);
  }

 private:
  void check_stage(const Instruction& instruction) {
    const bool is_first = here_.stage == StageId(0);
    const bool is_last = here_.stage.index() + 1 == schedule_.stages.size();
    const Kind kind = instruction.kind;
    if (kind == Kind::LoadMicroBatch && !is_first && !is_last) {
      object(Fault::WrongStage, str(instruction, " is of no use to stage ", here_.stage),
             "the first stage loads inputs, the last one labels; remove it");
    }
    const bool backwards = kind == Kind::RecvActivation || kind == Kind::SendGrad;
    const bool forwards = kind == Kind::SendActivation || kind == Kind::RecvGrad;
    if ((backwards && is_first) || (forwards && is_last)) {
      object(Fault::WrongStage,
             str(instruction, ": no stage is ", backwards ? "before" : "behind", " stage ",
                 here_.stage),
             "remove it");
    }
  }

  void check_buffer(const Instruction& instruction) {
    if (instruction.buffer.has_value() != has_buffer(instruction.kind)) {
      object(Fault::NoSuchBuffer,
             str(instruction, instruction.buffer ? " has no buffer" : " names no buffer"),
             "an instruction that moves or computes names one, the others none");
      return;
    }
    const std::int32_t buffers =
        std::min(schedule_.stages[here_.stage.index()].buffers, kBuffersMax);
    if (!instruction.buffer || (*instruction.buffer >= 0 && *instruction.buffer < buffers)) return;
    object(Fault::NoSuchBuffer, str(instruction, " names no buffer of its stage"),
           buffers > 0 ? str("stage ", here_.stage, " has buffers 0 to ", buffers - 1)
                       : str("stage ", here_.stage, " has no buffers"));
  }

  void object(Fault fault, std::string message, std::string repair) {
    faults_.push_back({fault, here_, std::move(message), std::move(repair)});
  }

  const SteppedSchedule& schedule_;
  std::vector<TraceFault> faults_;
  InstructionPlace here_;
};

}  // namespace

std::vector<TraceFault> misplaced(const SteppedSchedule& schedule) {
  return Places(schedule).check();
}

}  // namespace penstock::schedule::deepspeed
