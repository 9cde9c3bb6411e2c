#include "penstock/runtime/train/module_replica.h"

#include <ATen/ops/full_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include <utility>

#include "penstock/core/error.h"
#include "penstock/runtime/stage/any_node.h"

namespace penstock::train {
namespace {

constexpr const char* kOfAnother =
    "a backward through no output of this engine's forward adds to gradients that are summed over "
    "the replicas already: call step() first";

const char* run_of(Forward forward) {
  switch (forward) {
    case Forward::Training:
      return "train";
    case Forward::Evaluation:
      return "evaluate";
    case Forward::Outside:
      return "outside";
  }
  return nullptr;
}

}  // namespace

ModuleReplica::ModuleReplica(const std::vector<stage::NamedParameter>& parameters,
                             const parameters::ReplicaOptions& options, ModuleGradients gradients,
                             const std::vector<parameters::ZeroInitParameters*>& spread_before,
                             comm::ShardGroup& group, comm::Communicator& communicator)
    : replicated_({{.parameters = parameters}}, options, spread_before, group, communicator),
      gradients_(std::move(gradients)),
      hooks_(replicated_.hooks(0), [this] { return may_nest_; }),
      backwards_(parameters, gradients_.scale, [this] {
        // A backward of this replica has put sums aside.  Another one might add to another's sums.
        if (has_sums_) throw Error(kOfAnother);
      }) {}

void ModuleReplica::take_over() {
  if (!replicated_.changes().take_over().empty()) backwards_.watch();
}

// The sums that are there go aside: what is summed next must not have them in it.
void ModuleReplica::accumulate_again() {
  if (!has_sums_) return;
  std::vector<at::Tensor> sums = parameters::copies_of_gradients(parts());
  drop_gradients();
  sums_before_ = std::move(sums);
}

void ModuleReplica::finish() {
  hooks_.finish();
  parameters::add_gradients(parts(), std::exchange(sums_before_, {}));
  has_sums_ = true;
}

void ModuleReplica::begin_compute(const char* run) {
  replicated_.check_frozen();
  if (replicated_.pager() != nullptr && !is_running_) replicated_.pager()->begin_run(run);
  is_running_ = true;
  hooks_.before_compute();
}

void ModuleReplica::end_run() {
  if (replicated_.pager() != nullptr) replicated_.pager()->end_run();
  is_running_ = false;
}

void ModuleReplica::begin_forward(Forward forward) {
  if (forward == Forward::Training) take_over();
  ends_with_forward_ = forward != Forward::Training && !is_running_;
  begin_compute(run_of(forward));
}

void ModuleReplica::end_forward() {
  hooks_.after_compute();
  if (ends_with_forward_) end_run();
}

void ModuleReplica::backward(const at::Tensor& loss, double factor,
                             execute::Accumulation accumulation, Graph graph) {
  const bool ends = accumulation == execute::Accumulation::Ends;
  accumulate_again();
  const CallerBackwards::Own own(backwards_);
  begin_compute("backward");
  may_nest_ = ends && stage::runs_python({&loss, 1});
  if (ends) hooks_.before_last_backward(gradients_.divisor);
  torch::autograd::backward({loss}, {at::full_like(loss, factor * backwards_.scale())},
                            graph == Graph::Retained);
  hooks_.after_compute();
  hooks_.after_backward(/*microbatch=*/0);
  end_run();
  if (ends) finish();
}

void ModuleReplica::begin_backward() {
  accumulate_again();
  begin_compute("backward");
}

void ModuleReplica::end_backward() {
  hooks_.after_compute();
  hooks_.after_backward(/*microbatch=*/0);
  end_run();
}

// Sums in a run of its own, since replicas compare what they sum.
void ModuleReplica::sum_gradients() {
  if (has_sums_) return;
  const bool begins = replicated_.pager() != nullptr && !is_running_;
  if (begins) replicated_.pager()->begin_run("sum");
  may_nest_ = true;
  hooks_.before_last_backward(gradients_.divisor);
  hooks_.after_backward(/*microbatch=*/0);
  if (begins) replicated_.pager()->end_run();
  finish();
}

std::vector<double> ModuleReplica::squared_norms(std::span<double> words) {
  if (replicated_.pager() != nullptr) replicated_.pager()->say_update();
  return replicated_.squared_norms(words);
}

void ModuleReplica::drop_gradients() {
  replicated_.drop_gradients();
  sums_before_.clear();
  has_sums_ = false;
}

void ModuleReplica::abandon() {
  if (replicated_.pager() == nullptr) return;
  replicated_.abandon_run();
  is_running_ = false;
  replicated_.pager()->check();
}

}  // namespace penstock::train
