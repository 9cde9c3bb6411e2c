#include "penstock/plan/schedule/deepspeed/steps.h"

#include <algorithm>

#include "penstock/core/check.h"

namespace penstock::schedule::deepspeed {
namespace {

bool has_previous(const Position& at) { return at.stage > 0; }
bool has_next(const Position& at) { return at.stage + 1 < at.stages; }
bool loads(const Position& at) { return !has_previous(at) || !has_next(at); }

bool valid(const Position& at, std::int32_t microbatch) {
  return microbatch >= 0 && microbatch < at.microbatches;
}

template <class StepAt>
std::vector<Step> each_step(std::int32_t count, const StepAt& step_at) {
  std::vector<Step> steps;
  steps.reserve(static_cast<std::size_t>(count));
  for (std::int32_t t = 0; t < count; ++t) steps.push_back(step_at(t));
  return steps;
}

// Receives for this step's microbatch, sends what the previous step made.
void exchange(Step& step, const Position& at, const Tick& tick, std::int32_t previous,
              TrainVersion version, std::int32_t buffers) {
  if (!(tick.is_forward ? has_previous(at) : has_next(at))) return;
  const auto receive = [&] {
    if (!valid(at, tick.microbatch)) return;
    step.push_back(
        {tick.is_forward ? Kind::RecvActivation : Kind::RecvGrad, tick.microbatch % buffers});
  };
  const auto send = [&] {
    if (!valid(at, previous)) return;
    step.push_back({tick.is_forward ? Kind::SendGrad : Kind::SendActivation, previous % buffers});
  };
  const bool receive_first = tick.is_forward == (version == TrainVersion::Original);
  if (receive_first) receive();
  send();
  if (!receive_first) receive();
}

}  // namespace

std::int32_t train_buffers(const Position& position, TrainVersion version) {
  check_position(position);
  const std::int32_t spare = version == TrainVersion::Original ? 1 : 0;
  return std::max(2, std::min(position.stages - position.stage + spare, position.microbatches));
}

Step train_step_at(const Position& position, const Tick& tick, std::int32_t previous,
                   TrainVersion version, std::int32_t buffers) {
  check_position(position);
  PENSTOCK_CHECK(buffers >= 1, buffers, " buffers");
  Step step;
  exchange(step, position, tick, previous, version, buffers);
  if (!valid(position, tick.microbatch)) return step;
  const std::int32_t buffer = tick.microbatch % buffers;
  if (tick.is_forward && loads(position)) step.push_back({Kind::LoadMicroBatch, buffer});
  step.push_back({tick.is_forward ? Kind::ForwardPass : Kind::BackwardPass, buffer});
  return step;
}

Step train_step(const Position& position, std::int32_t t, TrainVersion version,
                std::int32_t buffers) {
  check_position(position);
  const std::int32_t count = train_step_count(position);
  PENSTOCK_CHECK(t >= 0 && t < count, "step ", t, " of ", count);
  Step step = train_step_at(position, step_to_micro_batch(position, t),
                            step_to_micro_batch(position, t - 1).microbatch, version, buffers);
  if (t + 1 == count) {
    step.insert(step.end(), {{.kind = Kind::ReduceTiedGrads},
                             {.kind = Kind::ReduceGrads},
                             {.kind = Kind::OptimizerStep}});
  }
  return step;
}

std::vector<Step> train_steps(const Position& position, TrainVersion version) {
  const std::int32_t buffers = train_buffers(position, version);
  return each_step(train_step_count(position),
                   [&](std::int32_t t) { return train_step(position, t, version, buffers); });
}

Step inference_step(const Position& position, std::int32_t t) {
  check_position(position);
  PENSTOCK_CHECK(t >= 0 && t < position.microbatches + position.stages - 1, "step ", t);
  const bool even = position.stage % 2 == 0;
  const std::int32_t k = t - position.stage;
  const std::int32_t receives_into = (even ? t : t + 1) % 2;
  Step step;
  if (valid(position, k) && loads(position)) step.push_back({Kind::LoadMicroBatch, receives_into});
  const bool sends = has_next(position) && valid(position, k - 1);
  const Instruction send{Kind::SendActivation, 1 - receives_into};
  if (even && sends) step.push_back(send);
  if (has_previous(position) && valid(position, k)) {
    step.push_back({Kind::RecvActivation, receives_into});
  }
  if (!even && sends) step.push_back(send);
  if (valid(position, k)) step.push_back({Kind::ForwardPass, receives_into});
  return step;
}

std::vector<Step> inference_steps(const Position& position) {
  check_position(position);
  return each_step(position.microbatches + position.stages - 1,
                   [&](std::int32_t t) { return inference_step(position, t); });
}

Step data_parallel_step(const Position& position, std::int32_t t) {
  check_position(position);
  PENSTOCK_CHECK(t >= 0 && t < position.microbatches, "step ", t);
  Step step{{Kind::LoadMicroBatch, 0}, {Kind::ForwardPass, 0}, {Kind::BackwardPass, 0}};
  if (t + 1 == position.microbatches) {
    step.insert(step.end(), {{.kind = Kind::ReduceGrads}, {.kind = Kind::OptimizerStep}});
  }
  return step;
}

std::vector<Step> data_parallel_steps(const Position& position) {
  check_position(position);
  return each_step(position.microbatches,
                   [&](std::int32_t t) { return data_parallel_step(position, t); });
}

}  // namespace penstock::schedule::deepspeed
