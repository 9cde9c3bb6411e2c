// Interprets one rank's plan, step after step.
//
// train/ makes one per plan (training, evaluation, generation), all over the same stages.  Short on
// purpose: the plan has decided every peer, tag and buffer, and the executor knows no schedule by
// name.
// An overlapped pair whose backward's stage shares layers with other ranks runs braided (braid.h).
// Not where something stands in for it, and not where Stage::may_be_left_for() forbids it; then its
// F runs, then its backward.  All ranks that share the layers decide alike.  Neither way changes
// who waits for whom outside of the pair, since what a pair sends comes behind both.
// Shapes: inputs[m] and targets[m] are microbatch m's, first dimension the microbatch size; they
// may differ from microbatch to microbatch and from step to step; what is not on the stages' device
// is copied there.
// Units: event times are nanoseconds of the steady clock, and of the device (step_clock.h).
// Thread safety: run() is called by one thread; `progress` may be read by any.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/lower/plan.h"
#include "penstock/runtime/execute/progress.h"
#include "penstock/runtime/execute/stage_hooks.h"
#include "penstock/runtime/stage/stage.h"

namespace penstock::execute {

class BraidedEvents;

// Whether a run is the last that adds to the gradients of a step.
enum class Accumulation : std::uint8_t { Ends, GoesOn };

struct StepInputs {
  std::vector<nn::Values> inputs;   // Microbatches, used by the rank of the first stage.
  std::vector<nn::Values> targets;  // Microbatches, used by the rank of the last stage.
  nn::Loss loss;                    // Absent: the last stage's outputs are returned instead.
  // Factors of the losses in the backward pass, by microbatch, on the rank of the last stage.
  // Everything that is called there sees the multiplied loss.  Empty: 1 each.
  std::vector<double> loss_factors;
  // Whether a microbatch has nothing that its loss is a mean of: its loss is 0 then, and not
  // called.  Empty: each has something.
  std::vector<bool> of_nothing;
  // What the run that ends an accumulation divides gradients by, where they are summed.
  double gradient_divisor = 1.0;
  // What the layers' random numbers depend on: the place of the first microbatch.  They are counted
  // over all replicas.
  nn::DrawPlace place;
  Accumulation accumulation = Accumulation::Ends;
};

struct StepResult {
  std::vector<at::Tensor> losses;  // Scalars by microbatch, on the rank of the last stage.
  // Outputs by microbatch, on the same rank, when there is no loss.
  std::vector<nn::Values> outputs;
};

// One instruction as it really ran.
struct Event {
  std::int32_t instruction = 0;  // Index into the plan; the plan's size: the end of the step.
  std::int64_t start_ns = 0;
  std::int64_t ready_ns = 0;  // Time at which what it waited for had come; start_ns if nothing.
  std::int64_t end_ns = 0;
  std::int64_t bytes = 0;  // Bytes of a Send's message.
};

// An action that something stands in for, and what the executor does at it.
struct Replaced {
  schedule::Action action;
  std::function<void()> run;
};
// Gets one, or the two of an overlapped pair.  Runs what computes once; the rest if it wants to.
// It may run the two at once, on threads that it waits for.  REQUIRES: where it fails without
// having waited, the executor and the step's inputs outlive its threads.
using Instead = std::function<void(const std::vector<Replaced>&)>;

class Executor {
 public:
  // `chunks` are the rank's stages in the plan's order; `hooks` likewise, or empty when there is
  // nothing to share with other ranks.  All references outlive the executor.
  Executor(lower::Plan plan, std::vector<stage::Stage*> chunks, std::vector<StageHooks*> hooks,
           comm::Communicator& communicator, Progress& progress);
  ~Executor();

  const lower::Plan& plan() const { return *plan_; }
  // The plan for one who keeps it longer than this: another thread may read it by way of the
  // progress.
  std::shared_ptr<const lower::Plan> shared_plan() const { return plan_; }

  // Runs the plan once.  A training plan leaves the gradients in the stages' parameters; the hooks
  // sum them over the replicas when they are final.
  // Throws: Error (CommError, ...) that names the instruction; the run is over then, on all ranks
  // of the communicator, whose waits end with the same words, and so does every later run.
  StepResult run(const StepInputs& inputs);

  // Waits until the device has done what the runs of the last step have given it: progress,
  // instruction by instruction.
  // Throws: CommError, when the ranks are interrupted.
  void await_device();

  // Calls `instead` from now on at actions of this op, or at overlapped pairs, which then are not
  // an F and a backward any more, nor braided.
  // REQUIRES: `op` is no SEND or RECV.
  void replace(schedule::Op op, Instead instead);
  void replace_pairs(Instead instead);

  // Records the events of the next run().
  void record_next_run() { recording_ = true; }
  const std::vector<Event>& events() const { return events_; }
  // Exchanges of the recorded run with the ranks that share layers, as they ended.
  const std::vector<ExchangeTimes>& exchanges() const { return exchanges_; }

 private:
  struct Impl;
  void run_one(std::int32_t index, const StepInputs& inputs);
  // Runs the pair whose F and backward have these numbers; `index` gets that of the one that fails.
  void run_braided(std::int32_t first, std::int32_t second, const StepInputs& inputs,
                   std::int32_t& index);
  // The event of what the plan has there, or of its end, which begins.
  Event& begin_event(std::int32_t index);
  void end_recording();
  std::string where(std::int32_t index, std::int64_t step) const;
  // Rethrows what is being handled, with its place and the original nested in it, and tells the
  // other ranks.
  [[noreturn]] void fail(std::int32_t index, std::int64_t step);

  std::shared_ptr<const lower::Plan> plan_;
  bool recording_ = false;
  std::vector<Event> events_;
  std::vector<BraidedEvents> braided_;
  std::vector<ExchangeTimes> exchanges_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::execute
