#include "penstock/runtime/execute/executor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <optional>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/exception_text.h"
#include "penstock/runtime/execute/braid.h"
#include "penstock/runtime/execute/braided_events.h"
#include "penstock/runtime/execute/device_events.h"
#include "penstock/runtime/execute/handed_values.h"
#include "penstock/runtime/execute/stand_ins.h"
#include "penstock/runtime/execute/step_clock.h"

namespace penstock::execute {
namespace {

using lower::Instruction;
using lower::Kind;
using lower::Route;
using schedule::Purpose;

// A run whose times are recorded, while one lives.
class RecordedRun {
 public:
  RecordedRun(Progress& progress, StepClock& clock, std::vector<ExchangeTimes>& exchanges)
      : progress_(progress) {
    clock.begin(progress.host_clock);
    progress.clock = &clock;
    progress.exchanges = &exchanges;
  }
  ~RecordedRun() {
    progress_.exchanges = nullptr;
    progress_.clock = nullptr;
  }
  RecordedRun(const RecordedRun&) = delete;
  RecordedRun& operator=(const RecordedRun&) = delete;

 private:
  Progress& progress_;
};

// The pair that a rank runs, while it does.
class RunningPair {
 public:
  RunningPair(Progress& progress, Braid& braid) : progress_(progress) { progress.braid = &braid; }
  ~RunningPair() { progress_.braid = nullptr; }
  RunningPair(const RunningPair&) = delete;
  RunningPair& operator=(const RunningPair&) = delete;

 private:
  Progress& progress_;
};

bool share_storage(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() &&
         a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

bool share_storage(const at::Tensor& a, const nn::Values& values) {
  return std::ranges::any_of(values, [&](const at::Tensor& b) { return share_storage(a, b); });
}

double loss_factor(const Instruction& instruction, const StepInputs& step) {
  if (step.loss_factors.empty()) return 1.0;
  return step.loss_factors[instruction.action.microbatch->index()];
}

const nn::Loss& loss_of(Microbatch microbatch, const StepInputs& step) {
  static const nn::Loss nothing = nn::loss_of_nothing;
  return !step.of_nothing.empty() && step.of_nothing[microbatch.index()] ? nothing : step.loss;
}

bool is_final(const StepInputs& step) { return step.accumulation == Accumulation::Ends; }

// A step has what its plan was made for.
void check(const lower::Plan& plan, const StepInputs& step) {
  const auto check_count = [&](std::size_t count, const char* what) {
    if (count == static_cast<std::size_t>(plan.microbatches)) return;
    throw Error(str("the plan has ", plan.microbatches, " microbatches, the step has ", what,
                    " of ", count));
  };
  if (plan.has_first_stage) check_count(step.inputs.size(), "inputs");
  if (!plan.has_last_stage || !step.loss) return;
  check_count(step.targets.size(), "targets");
  if (!step.loss_factors.empty()) check_count(step.loss_factors.size(), "loss factors");
}

void say_ran(const Progress& progress, const Instruction& instruction) {
  if (!progress.ran || instruction.kind == Kind::AwaitSend) return;
  progress.ran(schedule::to_string(instruction.action));
}

}  // namespace

struct Executor::Impl {
  Impl(const lower::Plan& p, std::vector<stage::Stage*> c, std::vector<StageHooks*> h,
       comm::Communicator& comm, Progress& pr)
      : plan(p),
        chunks(std::move(c)),
        hooks(std::move(h)),
        communicator(comm),
        progress(pr),
        device(chunks.empty() ? c10::Device(at::kCPU) : chunks.front()->device()),
        age(comm.age()) {
    PENSTOCK_CHECK(chunks.size() == plan.chunks.size(), chunks.size(), " chunks");
    if (hooks.empty()) hooks.resize(chunks.size(), &no_hooks);
    PENSTOCK_CHECK(hooks.size() == chunks.size(), hooks.size(), " hooks");
    begin_anew();
  }

  void begin_anew() {
    values.emplace(plan, communicator, progress, device);
    stand_ins.begin_anew();
  }

  // What was on its way before the ranks began anew is lost, and what they had announced.
  void keep_up_with_communicator() {
    if (age == communicator.age()) return;
    age = communicator.age();
    begin_anew();
  }

  StageHooks& hook(const Instruction& instruction) {
    return *hooks[static_cast<std::size_t>(instruction.chunk)];
  }

  nn::Values forward_inputs(const Instruction& instruction, const StepInputs& step) {
    if (instruction.from != Route::Batch) return values->take_inputs(instruction);
    return nn::on_device(step.inputs[instruction.action.microbatch->index()], device);
  }

  nn::Values backward_gradients(const Instruction& instruction, const StepInputs& step) {
    if (instruction.from != Route::Batch) return values->take_gradients(instruction);
    return at::full({}, loss_factor(instruction, step),
                    result.losses[instruction.action.microbatch->index()].options());
  }

  // A stage may hand back an input, or a view of it.  A receive buffer is used again while the
  // value is still needed, so it must not leave the stage; nor must a weight that may go.
  void own(nn::Values& made, const nn::Values& inputs, const Instruction& instruction) {
    for (at::Tensor& value : made) {
      const bool is_in_buffer = instruction.from == Route::Message && share_storage(value, inputs);
      if (!is_in_buffer && !hook(instruction).is_weight(value)) continue;
      const bool requires_grad = value.requires_grad();
      value = value.clone().requires_grad_(requires_grad);
    }
  }

  void forward(const Instruction& instruction, const nn::Values& inputs, const StepInputs& step) {
    const Microbatch microbatch = *instruction.action.microbatch;
    stage::Stage& stage = *chunks[static_cast<std::size_t>(instruction.chunk)];
    const bool keep_graph = plan.purpose == Purpose::Train;
    if (instruction.to == Route::Batch && step.loss) {
      result.losses[microbatch.index()] = stage.forward_loss(
          microbatch, inputs, nn::on_device(step.targets[microbatch.index()], device),
          loss_of(microbatch, step), keep_graph);
      return;
    }
    nn::Values results = stage.forward(microbatch, inputs, keep_graph);
    own(results, inputs, instruction);
    if (instruction.to == Route::Batch) {
      result.outputs[microbatch.index()] = std::move(results);
    } else {
      values->hand_outputs(instruction, std::move(results));
    }
  }

  void backward(const Instruction& instruction, const nn::Values& gradients,
                const StepInputs& step) {
    stage::Stage& stage = *chunks[static_cast<std::size_t>(instruction.chunk)];
    const Microbatch microbatch = *instruction.action.microbatch;
    const bool whole = instruction.kind == Kind::Backward;
    if (whole) announce(instruction, step);
    nn::Values of_inputs =
        whole ? stage.backward(microbatch, gradients) : stage.backward_input(microbatch, gradients);
    const std::int64_t number = step.place.microbatch + microbatch.value;
    whole ? hook(instruction).after_backward(number)
          : hook(instruction).after_backward_input(number);
    own(of_inputs, gradients, instruction);
    if (instruction.to == Route::Batch) return;
    values->hand_gradients(instruction, std::move(of_inputs));
  }

  void backward_weight(const Instruction& instruction, const StepInputs& step) {
    announce(instruction, step);
    const Microbatch microbatch = *instruction.action.microbatch;
    chunks[static_cast<std::size_t>(instruction.chunk)]->backward_weight(microbatch);
    hook(instruction).after_backward(step.place.microbatch + microbatch.value);
  }

  void announce(const Instruction& instruction, const StepInputs& step) {
    if (instruction.last && is_final(step)) {
      hook(instruction).before_last_backward(step.gradient_divisor);
    }
  }

  template <class Layers>
  void compute(const Instruction& instruction, const Layers& layers) {
    hook(instruction).before_compute();
    layers();
    hook(instruction).after_compute();
  }

  // The number of the backward, if the instruction is the F of a pair that runs braided.
  std::optional<std::int32_t> braided_with(std::int32_t index) const {
    const Instruction& first = plan.instructions[static_cast<std::size_t>(index)];
    if (first.kind != Kind::Forward || !first.action.overlaps_next) return {};
    auto second = static_cast<std::size_t>(index) + 1;
    while (!schedule::is_compute(plan.instructions[second].action.op)) ++second;
    const Instruction& behind = plan.instructions[second];
    if (stand_ins.replace_any(first.action.op, behind.action.op)) return {};
    const auto stage_of = [&](const Instruction& each) -> const stage::Stage& {
      return *chunks[static_cast<std::size_t>(each.chunk)];
    };
    if (!stage_of(behind).may_be_left_for(stage_of(first))) return {};
    return static_cast<std::int32_t>(second);
  }

  // Runs one instruction; `event`, if any, learns when its input had come, and what it sent.
  void execute(const Instruction& instruction, const StepInputs& step, Event* event) {
    const Ran ran = stand_ins.run(instruction, [this, &step](const Instruction& each) {
      const at::NoGradGuard no_grad;  // Set again, as in run(): this may be another thread.
      return perform(each, step);
    });
    if (schedule::is_compute(instruction.action.op)) device_events.mark(step.place.step);
    if (event == nullptr) return;
    if (ran.ready_ns > 0) event->ready_ns = ran.ready_ns;
    event->bytes = ran.bytes;
  }

  // Takes what the instruction computes on, which its function may do on two threads at once.
  template <class Taken>
  nn::Values take(const Taken& taken, Ran& ran) {
    const std::scoped_lock lock(taking);
    nn::Values there = taken();
    if (progress.clock != nullptr) ran.ready_ns = clock.mark();
    return there;
  }

  Ran perform(const Instruction& instruction, const StepInputs& step) {
    Ran ran;
    switch (instruction.kind) {
      case Kind::Forward: {
        const nn::Values inputs = take([&] { return forward_inputs(instruction, step); }, ran);
        compute(instruction, [&] { forward(instruction, inputs, step); });
        break;
      }
      case Kind::Backward:
      case Kind::BackwardInput: {
        const nn::Values gradients =
            take([&] { return backward_gradients(instruction, step); }, ran);
        compute(instruction, [&] { backward(instruction, gradients, step); });
        break;
      }
      case Kind::BackwardWeight:
        compute(instruction, [&] { backward_weight(instruction, step); });
        break;
      case Kind::Send:
        ran.bytes = values->send(instruction);
        break;
      case Kind::Receive:
        values->mailbox().receive(instruction);
        break;
      case Kind::AwaitSend:
        values->mailbox().await(instruction);
        break;
      case Kind::ReduceGradients:
        if (is_final(step)) hook(instruction).reduce(instruction.action.microbatch);
        break;
      case Kind::Unshard:
        hook(instruction).unshard();
        break;
      case Kind::Reshard:
        hook(instruction).reshard();
        break;
    }
    return ran;
  }

  void finish(const StepInputs& step) {
    progress.instruction.store(-1, std::memory_order_relaxed);
    {
      const WaitMark wait(progress, "finishing sends");
      values->mailbox().finish();
    }
    if (!is_final(step)) return;
    const WaitMark wait(progress, "summing gradients over replicas");
    for (StageHooks* hook : hooks) hook->finish();
  }

  const lower::Plan& plan;
  std::vector<stage::Stage*> chunks;
  StageHooks no_hooks;
  std::vector<StageHooks*> hooks;  // Hooks by chunk.
  comm::Communicator& communicator;
  Progress& progress;
  c10::Device device;
  std::int64_t age;  // Age of the communicator in which the next was made.
  std::optional<HandedValues> values;
  DeviceEvents device_events{device};
  StepClock clock{device};
  std::mutex taking;
  StandIns stand_ins;
  std::optional<Braid> braid;  // Made for the first pair.
  StepResult result;
};

Executor::Executor(lower::Plan plan, std::vector<stage::Stage*> chunks,
                   std::vector<StageHooks*> hooks, comm::Communicator& communicator,
                   Progress& progress)
    : plan_(std::make_shared<const lower::Plan>(std::move(plan))),
      impl_(std::make_unique<Impl>(*plan_, std::move(chunks), std::move(hooks), communicator,
                                   progress)) {}

Executor::~Executor() { impl_->progress.forget(plan_.get()); }

void Executor::replace(schedule::Op op, Instead instead) {
  PENSTOCK_CHECK(!schedule::is_send(op) && !schedule::is_receive(op), to_string(op));
  impl_->stand_ins.replace(op, std::move(instead));
}

void Executor::replace_pairs(Instead instead) {
  impl_->stand_ins.replace_pairs(std::move(instead));
}

StepResult Executor::run(const StepInputs& inputs) {
  const auto microbatches = static_cast<std::size_t>(plan_->microbatches);
  impl_->result.losses.assign(microbatches, {});
  impl_->result.outputs.assign(microbatches, {});
  events_.clear();
  exchanges_.clear();
  braided_.clear();
  if (recording_) events_.reserve(plan_->instructions.size() + 1);
  Progress& progress = impl_->progress;
  progress.plan.store(plan_.get(), std::memory_order_release);
  std::int32_t index = 0;
  const at::NoGradGuard no_grad;  // A stage turns it on for its layers.
  forget_failure();
  impl_->communicator.check_interrupt();
  impl_->keep_up_with_communicator();
  try {
    check(*plan_, inputs);
    for (stage::Stage* stage : impl_->chunks) stage->begin_step(inputs.place);
    impl_->values->mailbox().begin(inputs.inputs);
    std::optional<RecordedRun> recorded;
    if (recording_) recorded.emplace(progress, impl_->clock, exchanges_);
    while (index < std::ssize(plan_->instructions)) {
      if (const auto second = impl_->braided_with(index)) {
        const std::int32_t first = index;
        run_braided(first, *second, inputs, index);
        for (index = first + 1; index < *second; ++index) run_one(index, inputs);
        ++index;
      } else {
        run_one(index, inputs);
        ++index;
      }
    }
    Event* const end = recording_ ? &begin_event(index) : nullptr;
    impl_->finish(inputs);
    if (end != nullptr) {
      end->end_ns = impl_->clock.mark();
      end_recording();
    }
  } catch (...) {
    fail(index, inputs.place.evaluation > 0 ? 0 : inputs.place.step);
  }
  recording_ = false;
  return std::move(impl_->result);
}

void Executor::run_one(std::int32_t index, const StepInputs& inputs) {
  Progress& progress = impl_->progress;
  const Instruction& instruction = plan_->instructions[static_cast<std::size_t>(index)];
  progress.instruction.store(index, std::memory_order_relaxed);
  if (progress.arrived) progress.arrived(schedule::to_string(instruction.action));
  Event* const event = recording_ ? &begin_event(index) : nullptr;
  impl_->execute(instruction, inputs, event);
  say_ran(progress, instruction);
  if (event != nullptr) event->end_ns = impl_->clock.mark();
  progress.advance();
}

void Executor::run_braided(std::int32_t first, std::int32_t second, const StepInputs& inputs,
                           std::int32_t& index) {
  struct Half {
    std::int32_t index;
    Event* event = nullptr;
    bool has_begun = false;
    bool is_over = false;
  };
  std::array<Half, 2> both{Half{first}, Half{second}};
  Progress& progress = impl_->progress;
  if (recording_) {
    braided_.emplace_back(events_.size());
    for (Half& each : both) each.event = &begin_event(each.index);
  }
  const auto instruction_of = [&](const Half& half) -> const Instruction& {
    return plan_->instructions[static_cast<std::size_t>(half.index)];
  };
  std::optional<std::int32_t> failing;
  const auto run = [&](Half& mine) {
    try {
      const Instruction& instruction = instruction_of(mine);
      if (progress.arrived) progress.arrived(schedule::to_string(instruction.action));
      mine.has_begun = true;
      impl_->execute(instruction, inputs, mine.event);
      say_ran(progress, instruction);
      progress.advance();
      mine.is_over = true;
    } catch (...) {
      if (!failing) failing = mine.index;
      throw;
    }
  };
  const auto turn_to = [&](const Half& mine, const Half& other) {
    if (recording_) braided_.back().turn(impl_->clock.mark());
    progress.instruction.store(mine.index, std::memory_order_relaxed);
    if (mine.has_begun && other.is_over) impl_->hook(instruction_of(mine)).before_compute();
  };
  if (!impl_->braid) impl_->braid.emplace();
  const RunningPair running(progress, *impl_->braid);
  auto& [forward, backward] = both;
  try {
    impl_->braid->run({.first = [&] { run(forward); },
                       .second = [&] { run(backward); },
                       .runs =
                           [&](Braid::Half half) {
                             half == Braid::Half::First ? turn_to(forward, backward)
                                                        : turn_to(backward, forward);
                           }});
  } catch (...) {
    index = failing.value_or(first);
    progress.instruction.store(index, std::memory_order_relaxed);
    throw;
  }
  if (recording_) braided_.back().turn(impl_->clock.mark());
}

Event& Executor::begin_event(std::int32_t index) {
  const std::int64_t now = impl_->clock.mark();
  return events_.emplace_back(
      Event{.instruction = index, .start_ns = now, .ready_ns = now, .end_ns = now});
}

// Marks become times.
void Executor::end_recording() {
  const StepClock& clock = impl_->clock;
  impl_->clock.end(impl_->communicator);
  for (Event& each : events_) {
    for (std::int64_t* time : {&each.start_ns, &each.ready_ns, &each.end_ns}) {
      *time = clock.ns(*time);
    }
  }
  for (const BraidedEvents& each : braided_) each.part(events_, clock);
  for (ExchangeTimes& each : exchanges_) {
    for (std::int64_t* time : {&each.start_ns, &each.begun_ns, &each.awaited_ns, &each.end_ns}) {
      *time = clock.ns(*time);
    }
  }
}

void Executor::await_device() {
  const WorkMark work(impl_->progress, "waiting for the device");
  impl_->device_events.await(impl_->progress, impl_->communicator);
}

void Executor::fail(std::int32_t index, std::int64_t step) {
  impl_->progress.leave();
  impl_->progress.instruction.store(-1, std::memory_order_relaxed);
  for (stage::Stage* stage : impl_->chunks) stage->drop_activations();
  try {
    rethrow_from(where(index, step));
  } catch (const Error& error) {
    impl_->communicator.fail(error);
    throw;
  }
}

std::string Executor::where(std::int32_t index, std::int64_t step) const {
  const auto at = static_cast<std::size_t>(index);
  std::string instruction = "the end of the step", microbatch;
  if (at < plan_->instructions.size()) {
    const Instruction& running = plan_->instructions[at];
    instruction = lower::to_string(running);
    if (running.action.microbatch) microbatch = str(", microbatch ", *running.action.microbatch);
  }
  return str("rank ", plan_->rank, step > 0 ? str(", step ", step) : "", microbatch, ", ",
             plan_->schedule, ", instruction ", index, " (", instruction, ")");
}

}  // namespace penstock::execute
