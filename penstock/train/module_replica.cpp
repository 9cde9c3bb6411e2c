#include "penstock/train/module_replica.h"

#include <ATen/ops/full_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include "penstock/stage/any_node.h"

namespace penstock::train {

ModuleReplica::ModuleReplica(const std::vector<stage::NamedParameter>& parameters,
                             const ZeroOptions& zero,
                             const std::vector<SpreadModule*>& spread_before,
                             comm::ShardGroup& group, comm::Communicator& communicator)
    : replicated_({{.parameters = parameters}}, zero, spread_before, group, communicator),
      hooks_(replicated_.hooks(0), [this] { return may_nest_; }) {}

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
  ends_with_forward_ = forward == Forward::Evaluation && !is_running_;
  begin_compute(forward == Forward::Training ? "train" : "evaluate");
}

void ModuleReplica::end_forward() {
  hooks_.after_compute();
  if (ends_with_forward_) end_run();
}

void ModuleReplica::backward(const at::Tensor& loss, double factor,
                             execute::Accumulation accumulation, Graph graph) {
  const bool ends = accumulation == execute::Accumulation::Ends;
  begin_compute("backward");
  may_nest_ = ends && stage::runs_python({&loss, 1});
  if (ends) hooks_.before_last_backward();
  torch::autograd::backward({loss}, {at::full_like(loss, factor)}, graph == Graph::Retained);
  hooks_.after_compute();
  hooks_.after_backward(/*microbatch=*/0);
  end_run();
  if (ends) hooks_.finish();
}

void ModuleReplica::abandon() {
  if (replicated_.pager() == nullptr) return;
  replicated_.abandon_run();
  is_running_ = false;
  replicated_.pager()->check();
}

}  // namespace penstock::train
