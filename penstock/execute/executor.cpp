#include "penstock/execute/executor.h"

#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/execute/mailbox.h"

namespace penstock::execute {
namespace {

using lower::Instruction;
using lower::Kind;
using lower::Route;
using schedule::Purpose;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool share_storage(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() &&
         a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

}  // namespace

struct Executor::Impl {
  Impl(const lower::Plan& p, std::vector<stage::Stage*> c, std::vector<GradientReducer*> r,
       comm::Communicator& communicator, Progress& pr)
      : plan(p),
        chunks(std::move(c)),
        reducers(std::move(r)),
        progress(pr),
        mailbox(p, communicator, pr) {
    PENSTOCK_CHECK(chunks.size() == plan.chunks.size(), chunks.size(), " chunks");
    const auto cells = chunks.size() * static_cast<std::size_t>(plan.microbatches);
    outputs.resize(cells);
    handed_over.resize(cells);
    input_gradients.resize(cells);
  }

  std::size_t cell(std::int32_t chunk, const schedule::Action& action) const {
    return static_cast<std::size_t>(chunk) * static_cast<std::size_t>(plan.microbatches) +
           action.microbatch->index();
  }

  // The chunk of this rank that holds the stage `offset` from the instruction's.
  std::int32_t neighbour(const Instruction& instruction, std::int32_t offset) const {
    for (std::size_t chunk = 0; chunk < plan.chunks.size(); ++chunk) {
      if (plan.chunks[chunk].value == instruction.action.stage.value + offset) {
        return static_cast<std::int32_t>(chunk);
      }
    }
    PENSTOCK_CHECK(false, lower::to_string(instruction), " has no neighbour here");
    return 0;
  }

  at::Tensor forward_input(const Instruction& instruction, const StepInputs& step) {
    const std::size_t microbatch = instruction.action.microbatch->index();
    switch (instruction.from) {
      case Route::Batch:
        return step.inputs.at(microbatch);
      case Route::Local:
        return std::move(handed_over[cell(instruction.chunk, instruction.action)]);
      case Route::Message:
        return mailbox.take(instruction);
    }
    return {};
  }

  // A stage may hand back its input, or a view of it.  A receive buffer is used again while the
  // value is still needed, so it must not leave the stage.
  static void own(at::Tensor& value, const at::Tensor& input, const Instruction& instruction) {
    if (instruction.from == Route::Message && share_storage(value, input)) value = value.clone();
  }

  void forward(const Instruction& instruction, const at::Tensor& input, const StepInputs& step) {
    const Microbatch microbatch = *instruction.action.microbatch;
    stage::Stage& stage = *chunks[static_cast<std::size_t>(instruction.chunk)];
    const bool keep_graph = plan.purpose == Purpose::Train;
    if (instruction.to == Route::Batch && step.loss) {
      result.losses[microbatch.index()] = stage.forward_loss(
          microbatch, input, step.targets.at(microbatch.index()), step.loss, keep_graph);
      return;
    }
    at::Tensor output = stage.forward(microbatch, input, keep_graph);
    own(output, input, instruction);
    switch (instruction.to) {
      case Route::Batch:
        result.outputs[microbatch.index()] = std::move(output);
        return;
      case Route::Local:
        handed_over[cell(neighbour(instruction, +1), instruction.action)] = std::move(output);
        return;
      case Route::Message:
        mailbox.expect_gradient_like(instruction.chunk, output);
        outputs[cell(instruction.chunk, instruction.action)] = std::move(output);
        return;
    }
  }

  at::Tensor backward_gradient(const Instruction& instruction, const StepInputs& step) {
    switch (instruction.from) {
      case Route::Batch:
        return at::full({}, step.loss_factor,
                        result.losses[instruction.action.microbatch->index()].options());
      case Route::Local:
        return std::move(input_gradients[cell(instruction.chunk, instruction.action)]);
      case Route::Message:
        return mailbox.take(instruction);
    }
    return {};
  }

  void backward(const Instruction& instruction, const at::Tensor& gradient) {
    const auto chunk = static_cast<std::size_t>(instruction.chunk);
    if (instruction.last && !reducers.empty()) reducers[chunk]->arm();
    at::Tensor of_input = chunks[chunk]->backward(*instruction.action.microbatch, gradient);
    own(of_input, gradient, instruction);
    switch (instruction.to) {
      case Route::Batch:
        return;
      case Route::Local:
        input_gradients[cell(neighbour(instruction, -1), instruction.action)] = std::move(of_input);
        return;
      case Route::Message:
        input_gradients[cell(instruction.chunk, instruction.action)] = std::move(of_input);
        return;
    }
  }

  void send(const Instruction& instruction) {
    const bool forward = instruction.action.op == schedule::Op::SendForward;
    auto& values = forward ? outputs : input_gradients;
    at::Tensor value = std::move(values[cell(instruction.chunk, instruction.action)]);
    if (!value.defined()) {
      throw Error(str(instruction.action, ": there is no gradient to send: stage ",
                      instruction.action.stage, " does not use its input"));
    }
    mailbox.send(instruction, value);
  }

  // Runs one instruction; `ready_ns` becomes the time when its input had come.
  void execute(const Instruction& instruction, const StepInputs& step, std::int64_t* ready_ns) {
    const auto came = [&] {
      if (ready_ns != nullptr) *ready_ns = now_ns();
    };
    switch (instruction.kind) {
      case Kind::Forward: {
        const at::Tensor input = forward_input(instruction, step);
        came();
        return forward(instruction, input, step);
      }
      case Kind::Backward: {
        const at::Tensor gradient = backward_gradient(instruction, step);
        came();
        return backward(instruction, gradient);
      }
      case Kind::Send:
        return send(instruction);
      case Kind::Receive:
        return mailbox.receive(instruction);
      case Kind::AwaitSend:
        return mailbox.await(instruction);
      case Kind::ReduceGradients:
        if (!reducers.empty()) {
          reducers[static_cast<std::size_t>(instruction.chunk)]->disarm_and_send_rest();
        }
        return;
    }
  }

  void finish() {
    progress.instruction.store(-1, std::memory_order_relaxed);
    {
      const WaitMark wait(progress, "finishing sends");
      mailbox.finish();
    }
    if (plan.purpose == Purpose::Forward) return;
    const WaitMark wait(progress, "summing gradients over replicas");
    for (GradientReducer* reducer : reducers) reducer->finish();
  }

  const lower::Plan& plan;
  std::vector<stage::Stage*> chunks;
  std::vector<GradientReducer*> reducers;
  Progress& progress;
  Mailbox mailbox;
  StepResult result;
  // By chunk and microbatch.
  std::vector<at::Tensor> outputs;          // To be sent on.
  std::vector<at::Tensor> handed_over;      // Inputs made by the stage before, on this rank.
  std::vector<at::Tensor> input_gradients;  // To be sent back, or of this chunk's output, local.
};

Executor::Executor(lower::Plan plan, std::vector<stage::Stage*> chunks,
                   std::vector<GradientReducer*> reducers, comm::Communicator& communicator,
                   Progress& progress)
    : plan_(std::move(plan)),
      impl_(std::make_unique<Impl>(plan_, std::move(chunks), std::move(reducers), communicator,
                                   progress)) {}

Executor::~Executor() = default;

StepResult Executor::run(const StepInputs& inputs) {
  const auto microbatches = static_cast<std::size_t>(plan_.microbatches);
  impl_->result.losses.assign(microbatches, {});
  impl_->result.outputs.assign(microbatches, {});
  events_.clear();
  Progress& progress = impl_->progress;
  progress.plan.store(&plan_, std::memory_order_release);
  std::int32_t index = 0;
  try {
    for (const Instruction& instruction : plan_.instructions) {
      progress.instruction.store(index, std::memory_order_relaxed);
      if (recording_) {
        Event event{.instruction = index, .start_ns = now_ns()};
        event.ready_ns = event.start_ns;
        impl_->execute(instruction, inputs, &event.ready_ns);
        event.end_ns = now_ns();
        events_.push_back(event);
      } else {
        impl_->execute(instruction, inputs, nullptr);
      }
      progress.counter.fetch_add(1, std::memory_order_relaxed);
      ++index;
    }
    impl_->finish();
  } catch (const CommError& error) {
    throw CommError(str(where(index), error.message()), error.notes(), error.exit_code());
  } catch (const Error& error) {
    throw Error(str(where(index), error.message()), error.notes(), error.exit_code());
  } catch (const c10::Error& error) {
    throw Error(str(where(index), error.what_without_backtrace()));
  } catch (const std::exception& error) {
    throw Error(str(where(index), error.what()));
  }
  recording_ = false;
  return std::move(impl_->result);
}

std::string Executor::where(std::int32_t index) const {
  const auto at = static_cast<std::size_t>(index);
  const std::string instruction = at < plan_.instructions.size()
                                      ? lower::to_string(plan_.instructions[at])
                                      : std::string("the end of the step");
  return str("rank ", plan_.rank, ", ", plan_.schedule, ", instruction ", index, " (", instruction,
             "): ");
}

}  // namespace penstock::execute
