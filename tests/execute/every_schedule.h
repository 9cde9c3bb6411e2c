// Runs a program on threads, one per rank, and compares everything it gives with the reference.
//
// Losses and gradients come from the training program, outputs from a forward-only one over the
// same stages.  Whatever the program, gradients are those of the reference added in the order of
// its B and W, to the bit; where that order is 0, 1, 2, ... on every stage they are those of any
// other such program, too.  Live activations are counted on the way: their peak is what verify
// said.
#pragma once
#include <ATen/ops/zeros_like.h>

#include <mutex>

#include "penstock/plan/lower/programs.h"
#include "tests/execute/reference.h"

namespace penstock::execute {

// What the ranks of a program leave behind, together.
struct Ran {
  std::vector<at::Tensor> losses;   // Losses by microbatch.
  std::vector<nn::Values> outputs;  // Outputs of the forward-only program, by microbatch.
  Gradients gradients;              // Undefined: none.
};

// Runs `schedule` once per step, and compares peaks of live activations; the last step's results.
inline Ran run_on_threads(const verify::VerifiedSchedule& schedule,
                          const std::vector<nn::LayerSpec>& model,
                          const std::vector<StepInputs>& steps) {
  const std::int32_t ranks = schedule.schedule().ranks();
  const bool trains = schedule.schedule().purpose == schedule::Purpose::Train;
  const verify::VerifiedSchedule forward =
      lower::forward_program(schedule, schedule.schedule().microbatches);
  Ran ran;
  std::mutex mutex;
  comm::run_ranks(ranks, [&](comm::Communicator& communicator) {
    RankPipeline rank(communicator, schedule, model, {.pipe = ranks});
    StepResult trained;
    for (const StepInputs& step : steps) trained = rank.run(step);
    EXPECT_EQ(rank.count->alive, 0);
    EXPECT_EQ(rank.count->peak, rank.executor->plan().peak_activations)
        << "rank " << communicator.rank();

    StepInputs inputs = steps.back();
    inputs.loss = nullptr;
    const StepResult evaluated = rank.run_also(forward, communicator, inputs);
    const std::lock_guard lock(mutex);
    if (rank.executor->plan().has_last_stage) {
      if (trains) ran.losses = trained.losses;
      ran.outputs = evaluated.outputs;
    }
    for (const auto& stage : rank.stages) {
      for (const auto& parameter : stage->parameters()) {
        ran.gradients[parameter.name] = parameter.tensor.grad();
      }
    }
  });
  return ran;
}

inline void expect_same_bits(const std::vector<at::Tensor>& got,
                             const std::vector<at::Tensor>& expected, const char* what) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(same_bits(got[i], expected[i])) << what << " " << i;
  }
}

// Two sums of the same terms in other orders.  Each is within (n - 1) u / (1 - (n - 1) u) times the
// sum of the terms' magnitudes of the exact one (Higham, Accuracy and Stability of Numerical
// Algorithms, 4.2; u: half the distance from 1 to the next number).  Where terms cancel, that is
// more than any share of the sum.
inline void expect_sum_of(const std::vector<at::Tensor>& terms, const at::Tensor& got,
                          const at::Tensor& expected, const std::string& name) {
  ASSERT_EQ(got.defined(), expected.defined()) << name;
  if (!got.defined()) return;
  at::Tensor magnitude = at::zeros_like(got, at::kDouble);
  for (const at::Tensor& term : terms) magnitude += term.abs();
  const double unit = got.scalar_type() == at::kDouble ? 0x1p-53 : 0x1p-24;
  const double steps = unit * static_cast<double>(terms.size() - 1);
  const at::Tensor difference = (got.to(at::kDouble) - expected.to(at::kDouble)).abs();
  EXPECT_LE((difference - 2 * steps / (1 - steps) * magnitude).max().item<double>(), 0) << name;
}

inline void expect_reference(const verify::VerifiedSchedule& schedule,
                             const std::vector<nn::LayerSpec>& model,
                             const std::vector<StepInputs>& steps, const Reference& reference) {
  const Ran ran = run_on_threads(schedule, model, steps);
  ASSERT_EQ(ran.outputs.size(), reference.outputs.size());
  for (std::size_t m = 0; m < ran.outputs.size(); ++m) {
    expect_same_bits(ran.outputs[m], reference.outputs[m], "output");
  }
  if (schedule.schedule().purpose == schedule::Purpose::Forward) return;
  expect_same_bits(ran.losses, reference.losses, "loss of microbatch");
  const partition::Partition partition = cut(model, schedule.schedule().stages);
  const Orders orders = orders_of(schedule.schedule());
  const Gradients in_this_order = summed(reference, orders, partition);
  Orders counted(orders.size());
  for (auto& order : counted) {
    for (std::size_t m = 0; m < reference.losses.size(); ++m) order.push_back(m);
  }
  const Gradients in_order = summed(reference, counted, partition);
  ASSERT_EQ(ran.gradients.size(), reference.layer_of.size());
  for (const auto& [name, gradient] : ran.gradients) {
    EXPECT_TRUE(same_bits(gradient, in_this_order.at(name))) << name;
    std::vector<at::Tensor> terms;
    for (const Gradients& of_microbatch : reference.gradients) {
      if (of_microbatch.at(name).defined()) terms.push_back(of_microbatch.at(name));
    }
    expect_sum_of(terms, gradient, in_order.at(name), name);
    if (orders == counted) {
      EXPECT_TRUE(same_bits(gradient, in_order.at(name))) << name;
    }
  }
}

}  // namespace penstock::execute
