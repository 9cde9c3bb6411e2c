#include "penstock/schedule/deepspeed/steps.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "penstock/core/check.h"

namespace penstock::schedule::deepspeed {
namespace {

void check(const Position& p) {
  PENSTOCK_CHECK(p.microbatches >= 1 && p.stages >= 1 && p.stage >= 0 && p.stage < p.stages,
                 p.microbatches, " microbatches, stage ", p.stage, " of ", p.stages);
}

class TrainClock {
 public:
  TrainClock(const Position& position, TrainVersion version)
      : at_(position), version_(version), buffers_(train_buffers(position, version)) {}

  std::vector<Step> run() {
    std::vector<Step> steps(static_cast<std::size_t>(2 * (at_.microbatches + at_.stages - 1)));
    std::int32_t previous = -1;
    for (std::size_t t = 0; t < steps.size(); ++t) {
      const auto time = static_cast<std::int32_t>(t);
      const bool forward = (time - at_.stage) % 2 == 0;
      const std::int32_t microbatch =
          (time - (forward ? at_.stage : 2 * at_.stages - 1 - at_.stage)) / 2;
      exchange(steps[t], forward, microbatch, previous);
      if (valid(microbatch)) compute(steps[t], forward, microbatch);
      previous = microbatch;
    }
    steps.back().insert(steps.back().end(), {{.kind = Kind::ReduceTiedGrads},
                                             {.kind = Kind::ReduceGrads},
                                             {.kind = Kind::OptimizerStep}});
    return steps;
  }

 private:
  bool valid(std::int32_t microbatch) const {
    return microbatch >= 0 && microbatch < at_.microbatches;
  }

  void add(Step& step, Kind kind, std::int32_t microbatch) const {
    step.push_back({kind, microbatch % buffers_});
  }

  // Receives for this step's microbatch, sends what the previous step made.
  void exchange(Step& step, bool forward, std::int32_t microbatch, std::int32_t previous) const {
    const bool neighbour = forward ? at_.stage > 0 : at_.stage + 1 < at_.stages;
    if (!neighbour) return;
    const auto receive = [&] {
      if (valid(microbatch)) add(step, forward ? Kind::RecvActivation : Kind::RecvGrad, microbatch);
    };
    const auto send = [&] {
      if (valid(previous)) add(step, forward ? Kind::SendGrad : Kind::SendActivation, previous);
    };
    const bool receive_first = forward == (version_ == TrainVersion::Original);
    if (receive_first) receive();
    send();
    if (!receive_first) receive();
  }

  void compute(Step& step, bool forward, std::int32_t microbatch) const {
    const bool loads = at_.stage == 0 || at_.stage + 1 == at_.stages;
    if (forward && loads) add(step, Kind::LoadMicroBatch, microbatch);
    add(step, forward ? Kind::ForwardPass : Kind::BackwardPass, microbatch);
  }

  const Position& at_;
  TrainVersion version_;
  std::int32_t buffers_;
};

std::optional<Op> op_of(Kind kind) {
  switch (kind) {
    case Kind::ForwardPass:
      return Op::Forward;
    case Kind::BackwardPass:
      return Op::Backward;
    case Kind::SendActivation:
      return Op::SendForward;
    case Kind::RecvActivation:
      return Op::RecvForward;
    case Kind::SendGrad:
      return Op::SendBackward;
    case Kind::RecvGrad:
      return Op::RecvBackward;
    case Kind::ReduceGrads:
      return Op::ReduceGradients;
    case Kind::LoadMicroBatch:
    case Kind::ReduceTiedGrads:
    case Kind::OptimizerStep:
      return {};
  }
  return {};
}

}  // namespace

std::int32_t train_buffers(const Position& position, TrainVersion version) {
  const std::int32_t spare = version == TrainVersion::Original ? 1 : 0;
  return std::max(2, std::min(position.stages - position.stage + spare, position.microbatches));
}

std::vector<Step> train_steps(const Position& position, TrainVersion version) {
  check(position);
  return TrainClock(position, version).run();
}

std::vector<Step> inference_steps(const Position& position) {
  check(position);
  const bool even = position.stage % 2 == 0;
  const bool has_previous = position.stage > 0;
  const bool has_next = position.stage + 1 < position.stages;
  const auto valid = [&](std::int32_t k) { return k >= 0 && k < position.microbatches; };
  std::vector<Step> steps;
  for (std::int32_t t = 0; t < position.microbatches + position.stages - 1; ++t) {
    const std::int32_t k = t - position.stage;
    const std::int32_t receives_into = (even ? t : t + 1) % 2;
    Step step;
    if (valid(k) && (!has_previous || !has_next)) {
      step.push_back({Kind::LoadMicroBatch, receives_into});
    }
    const Instruction send{Kind::SendActivation, 1 - receives_into};
    if (even && has_next && valid(k - 1)) step.push_back(send);
    if (has_previous && valid(k)) step.push_back({Kind::RecvActivation, receives_into});
    if (!even && has_next && valid(k - 1)) step.push_back(send);
    if (valid(k)) step.push_back({Kind::ForwardPass, receives_into});
    steps.push_back(std::move(step));
  }
  return steps;
}

std::vector<Step> data_parallel_steps(const Position& position) {
  check(position);
  const Step step{{Kind::LoadMicroBatch, 0}, {Kind::ForwardPass, 0}, {Kind::BackwardPass, 0}};
  std::vector<Step> steps(static_cast<std::size_t>(position.microbatches), step);
  steps.back().insert(steps.back().end(),
                      {{.kind = Kind::ReduceGrads}, {.kind = Kind::OptimizerStep}});
  return steps;
}

Program to_program(const std::vector<Step>& steps, StageId stage) {
  Program program;
  std::array<std::int32_t, kOps> seen{};
  for (const Step& step : steps) {
    for (const Instruction& instruction : step) {
      const auto op = op_of(instruction.kind);
      if (!op) continue;
      Action action{stage, *op};
      if (has_microbatch(*op))
        action.microbatch = Microbatch(seen[static_cast<std::size_t>(*op)]++);
      program.push_back(action);
    }
  }
  return program;
}

}  // namespace penstock::schedule::deepspeed
