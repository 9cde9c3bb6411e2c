#include "penstock/train/module_replica.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <utility>

#include "penstock/stage/any_node.h"

namespace penstock::train {
namespace {

// While it lives, parameters that are spread come when they are read, and go for the next.
class Reading {
 public:
  explicit Reading(const std::vector<SpreadModule*>& modules) {
    std::vector<std::shared_ptr<zero::Page>> pages;
    for (SpreadModule* module : modules) {
      const auto& theirs = module->shards().pages();
      pages.insert(pages.end(), theirs.begin(), theirs.end());
    }
    if (pages.empty()) return;
    pager_.emplace(modules.front()->shards().group(), std::move(pages), paging::Limits{});
    pager_->begin_run("leave");
    pager_->begin_compute();
  }
  void end() {
    if (!pager_) return;
    pager_->end_compute();
    pager_->end_run();
  }

 private:
  std::optional<zero::Pager> pager_;
};

bool is_among(const at::Tensor& tensor, const std::vector<stage::NamedParameter>& parameters) {
  return std::ranges::any_of(parameters,
                             [&](const auto& each) { return each.tensor.is_same(tensor); });
}

}  // namespace

ModuleReplica::ModuleReplica(const std::vector<stage::NamedParameter>& parameters,
                             const ReplicaOptions& options,
                             const std::vector<SpreadModule*>& spread_before,
                             comm::ShardGroup& group, comm::Communicator& communicator)
    : group_(group), communicator_(communicator) {
  const at::NoGradGuard no_grad;
  std::vector<stage::NamedParameter> were_spread;
  Reading reading(spread_before);
  for (SpreadModule* module : spread_before) {
    const auto& theirs = module->shards().parameters();
    were_spread.insert(were_spread.end(), theirs.begin(), theirs.end());
  }
  for (const stage::NamedParameter& each : were_spread) {
    const bool goes_on = comes_and_goes(each, options, group) && is_among(each.tensor, parameters);
    if (!goes_on) each.tensor.set_data(each.tensor.detach().clone());
  }
  share_first_values(parameters, were_spread);
  replicated_.emplace(std::vector<ParameterSet>{{.parameters = parameters}}, options, group,
                      communicator);
  hooks_.emplace(replicated_->hooks(0), [this] { return may_nest_; });
  reading.end();
}

void ModuleReplica::share_first_values(const std::vector<stage::NamedParameter>& parameters,
                                       const std::vector<stage::NamedParameter>& but) {
  if (group_.size() == 1) return;
  for (const stage::NamedParameter& each : parameters) {
    if (is_among(each.tensor, but)) continue;
    communicator_.broadcast(each.tensor, group_.group(), /*root=*/0)->wait();
  }
}

void ModuleReplica::begin_compute(const char* run) {
  replicated_->check_frozen();
  if (replicated_->pager() != nullptr && !is_running_) replicated_->pager()->begin_run(run);
  is_running_ = true;
  hooks_->before_compute();
}

void ModuleReplica::end_run() {
  if (replicated_->pager() != nullptr) replicated_->pager()->end_run();
  is_running_ = false;
}

void ModuleReplica::begin_forward(Forward forward) {
  ends_with_forward_ = forward == Forward::Evaluation && !is_running_;
  begin_compute(forward == Forward::Training ? "train" : "evaluate");
}

void ModuleReplica::end_forward() {
  hooks_->after_compute();
  if (ends_with_forward_) end_run();
}

void ModuleReplica::backward(const at::Tensor& loss, double factor,
                             execute::Accumulation accumulation, Graph graph) {
  const bool ends = accumulation == execute::Accumulation::Ends;
  begin_compute("backward");
  may_nest_ = ends && stage::runs_python({&loss, 1});
  if (ends) hooks_->before_last_backward();
  torch::autograd::backward({loss}, {at::full_like(loss, factor)}, graph == Graph::Retained);
  hooks_->after_compute();
  hooks_->after_backward(/*microbatch=*/0);
  end_run();
  if (ends) hooks_->finish();
}

void ModuleReplica::abandon() {
  if (replicated_->pager() == nullptr) return;
  replicated_->abandon_run();
  is_running_ = false;
  replicated_->pager()->check();
}

}  // namespace penstock::train
