#include "penstock/memory/rank_memory.h"

#include <algorithm>
#include <array>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/text.h"

namespace penstock::memory {
namespace {

using lower::Instruction;
using lower::Kind;
using lower::Route;

// The passes of a chunk, each worked out once.
struct Passes {
  Pass forward;
  Pass input;
  std::array<Pass, 4> backward;  // Passes by turn.
  std::array<Pass, 4> weight;
};

std::size_t index(Turn turn) { return (turn.is_first ? 2U : 0U) + (turn.is_last ? 1U : 0U); }

Passes passes_of(const StageMemory& stage) {
  Passes passes{.forward = stage.forward(), .input = stage.backward_input()};
  for (const bool first : {false, true}) {
    for (const bool last : {false, true}) {
      const Turn turn{.is_first = first, .is_last = last};
      passes.backward[index(turn)] = stage.backward(turn);
      passes.weight[index(turn)] = stage.backward_weight(turn);
    }
  }
  return passes;
}

class Walk {
 public:
  Walk(const lower::Plan& plan, const std::vector<StageMemory>& stages, const Standing& standing)
      : plan_(plan),
        stages_(stages),
        always_(standing.always),
        now_(standing.always + standing.in_step),
        batch_(standing.in_step.batch),
        update_(standing.update) {
    for (const StageMemory& stage : stages) passes_.push_back(passes_of(stage));
    has_gradients_.resize(stages.size());
    kept_gradients_.resize(stages.size());
    under_way_.resize(static_cast<std::size_t>(plan.send_slots));
    for (std::size_t chunk = 0; chunk < stages.size(); ++chunk) {
      always_.messages += plan.forward_slots[chunk] * input_bytes(chunk) +
                          plan.backward_slots[chunk] * stages[chunk].output();
    }
    now_.messages = always_.messages;
    note(0, "");
  }

  RankMemory go() {
    for (const Instruction& instruction : plan_.instructions) run(instruction);
    always_.gradients = now_.gradients;
    result_.between_steps = always_;
    now_ = always_;
    now_.batch += batch_;
    now_.optimizer += update_;
    note(0, "update");
    return std::move(result_);
  }

 private:
  // The gradient of a stage's input is as large as the input; one that takes none is in no message.
  std::int64_t input_bytes(std::size_t chunk) const { return stages_[chunk].input_gradient(); }

  void note(std::int64_t more, const std::string& at) {
    if (now_.total() + more <= result_.peak.total()) return;
    result_.peak = now_;
    result_.peak.activations += more;
    result_.at = at;
  }

  void run(const Pass& pass, const Instruction& instruction) {
    note(pass.peak, now_.total() + pass.peak > result_.peak.total() ? str(instruction.action) : "");
    now_.activations += pass.after.activations;
    now_.gradients += pass.after.gradients;
    now_.buckets += pass.after.buckets;
  }

  Turn turn_of(const Instruction& instruction) {
    const auto chunk = static_cast<std::size_t>(instruction.chunk);
    const bool is_first = !has_gradients_[chunk];
    has_gradients_[chunk] = true;
    return {.is_first = is_first, .is_last = instruction.last};
  }

  void run(const Instruction& instruction) {
    const auto chunk = static_cast<std::size_t>(instruction.chunk);
    switch (instruction.kind) {
      case Kind::Forward:
        live_ += 1;
        result_.live_activations = std::max(result_.live_activations, live_);
        run(passes_[chunk].forward, instruction);
        return hand_on_output(instruction, stages_[chunk]);
      case Kind::Backward:
        run(passes_[chunk].backward[index(turn_of(instruction))], instruction);
        live_ -= 1;
        take_gradient(instruction, stages_[chunk], /*keeps=*/false);
        return hand_on_gradient(instruction, stages_[chunk]);
      case Kind::BackwardInput:
        run(passes_[chunk].input, instruction);
        take_gradient(instruction, stages_[chunk], stages_[chunk].half_keeps_gradient());
        return hand_on_gradient(instruction, stages_[chunk]);
      case Kind::BackwardWeight:
        run(passes_[chunk].weight[index(turn_of(instruction))], instruction);
        live_ -= 1;
        return drop_kept_gradient(chunk);
      case Kind::Send:
        return send(instruction);
      case Kind::AwaitSend:
        now_.messages -= std::exchange(under_way_[static_cast<std::size_t>(instruction.slot)], 0);
        return;
      case Kind::Receive:
      case Kind::ReduceGradients:
      case Kind::Unshard:
      case Kind::Reshard:
        return;
    }
  }

  // An output that its stage does not keep is the next one's input here, or a message's.
  void hand_on_output(const Instruction& instruction, const StageMemory& stage) {
    if (stage.keeps_output() || instruction.to == Route::Batch) return;
    (instruction.to == Route::Local ? now_.activations : now_.messages) += stage.output();
  }

  // The gradient of a stage's output, from the next stage of this rank, is used up; so is that
  // output, where the next stage alone has kept it.
  void take_gradient(const Instruction& instruction, const StageMemory& stage, bool keeps) {
    if (instruction.from != Route::Local) return;
    if (keeps) {
      ++kept_gradients_[static_cast<std::size_t>(instruction.chunk)];
    } else {
      now_.activations -= stage.output();
    }
    if (!stage.keeps_output()) now_.activations -= stage.output();
  }

  void drop_kept_gradient(std::size_t chunk) {
    if (kept_gradients_[chunk] == 0) return;
    --kept_gradients_[chunk];
    now_.activations -= stages_[chunk].output();
  }

  void hand_on_gradient(const Instruction& instruction, const StageMemory& stage) {
    if (instruction.to == Route::Batch) return;
    (instruction.to == Route::Local ? now_.activations : now_.messages) += stage.input_gradient();
    note(0, "");
  }

  void send(const Instruction& instruction) {
    const auto chunk = static_cast<std::size_t>(instruction.chunk);
    const StageMemory& stage = stages_[chunk];
    const bool forward = instruction.action.op == schedule::Op::SendForward;
    std::int64_t& bytes = under_way_[static_cast<std::size_t>(instruction.slot)];
    bytes = forward ? (stage.keeps_output() ? 0 : stage.output()) : stage.input_gradient();
  }

  const lower::Plan& plan_;
  const std::vector<StageMemory>& stages_;
  std::vector<Passes> passes_;
  std::vector<bool> has_gradients_;      // True of chunks that have gradients.
  std::vector<std::int64_t> under_way_;  // Bytes by send slot.
  // Gradients that each chunk was handed here, and keeps for W.
  std::vector<std::int32_t> kept_gradients_;
  std::int32_t live_ = 0;
  Bytes always_;
  Bytes now_;
  std::int64_t batch_;
  std::int64_t update_;
  RankMemory result_;
};

}  // namespace

Bytes operator+(const Bytes& a, const Bytes& b) {
  return {.parameters = a.parameters + b.parameters,
          .gradients = a.gradients + b.gradients,
          .optimizer = a.optimizer + b.optimizer,
          .activations = a.activations + b.activations,
          .buckets = a.buckets + b.buckets,
          .messages = a.messages + b.messages,
          .batch = a.batch + b.batch,
          .copies = a.copies + b.copies};
}

RankMemory rank_memory(const lower::Plan& plan, const std::vector<StageMemory>& stages,
                       const Standing& standing) {
  PENSTOCK_CHECK(stages.size() == plan.chunks.size(), stages.size(), " stages");
  return Walk(plan, stages, standing).go();
}

}  // namespace penstock::memory
