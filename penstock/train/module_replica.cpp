#include "penstock/train/module_replica.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/execute/gradients.h"
#include "penstock/stage/any_node.h"
#include "penstock/zero/paged_hooks.h"

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

using torch::autograd::Node;

bool has_python(const at::Tensor& loss) {
  return stage::any_node({&loss, 1}, [](Node& node) {
    // Known by name: the type is that of another library.
    return std::string_view(typeid(node).name()) == "N5torch8autograd6PyNodeE";
  });
}

bool is_among(const at::Tensor& tensor, const std::vector<stage::NamedParameter>& parameters) {
  return std::ranges::any_of(parameters,
                             [&](const auto& each) { return each.tensor.is_same(tensor); });
}

// With stage 3, gradients of kept parameters come between those of spread ones.
zero::GradientBuckets buckets_of(ZeroStage stage) {
  if (stage == ZeroStage::Parameters) return zero::GradientBuckets::ReleasedLast;
  return stage == ZeroStage::OptimizerStates ? zero::GradientBuckets::Kept
                                             : zero::GradientBuckets::Released;
}

}  // namespace

ModuleReplica::ModuleReplica(const std::vector<stage::NamedParameter>& parameters,
                             const ReplicaOptions& options,
                             const std::vector<SpreadModule*>& spread_before,
                             comm::ShardGroup& group, comm::Communicator& communicator)
    : options_(options), group_(group), communicator_(communicator), parameters_(parameters) {
  const at::NoGradGuard no_grad;
  std::vector<stage::NamedParameter> spread, kept, were_spread;
  for (const stage::NamedParameter& each : parameters) {
    (comes_and_goes(each) ? spread : kept).push_back(each);
  }
  Reading reading(spread_before);
  for (SpreadModule* module : spread_before) {
    const auto& theirs = module->shards().parameters();
    were_spread.insert(were_spread.end(), theirs.begin(), theirs.end());
  }
  for (const stage::NamedParameter& each : were_spread) {
    if (!is_among(each.tensor, spread)) each.tensor.set_data(each.tensor.detach().clone());
  }
  share_first_values(parameters, were_spread);
  if (!kept.empty()) build_kept(kept);
  if (!spread.empty()) build_spread(spread);
  reading.end();
  place_parts();
}

ModuleReplica::~ModuleReplica() = default;

bool ModuleReplica::comes_and_goes(const stage::NamedParameter& parameter) const {
  return is_sharded() && options_.zero.stage == ZeroStage::Parameters &&
         parameter.tensor.numel() > options_.persistent_elements;
}

void ModuleReplica::share_first_values(const std::vector<stage::NamedParameter>& parameters,
                                       const std::vector<stage::NamedParameter>& but) {
  if (group_.size() == 1) return;
  for (const stage::NamedParameter& each : parameters) {
    if (is_among(each.tensor, but)) continue;
    communicator_.broadcast(each.tensor, group_.group(), /*root=*/0)->wait();
  }
}

void ModuleReplica::build_kept(const std::vector<stage::NamedParameter>& parameters) {
  const std::int64_t bucket_bytes = options_.zero.bucket_bytes;
  if (!is_sharded()) {
    hooks_.push_back(std::make_unique<execute::GradientReducer>(parameters, group_, bucket_bytes));
    return;
  }
  kept_ =
      std::make_unique<zero::ParameterShards>(parameters, group_, bucket_bytes, zero::Keeps::Whole);
  hooks_.push_back(
      std::make_unique<zero::ShardedGradients>(*kept_, buckets_of(options_.zero.stage)));
}

void ModuleReplica::build_spread(const std::vector<stage::NamedParameter>& parameters) {
  spread_ = std::make_unique<SpreadModule>(parameters, group_, options_.zero.bucket_bytes);
  pager_ = std::make_unique<zero::Pager>(group_, spread_->shards().pages(), options_.zero.limits);
  hooks_.push_back(std::make_unique<zero::PagedHooks>(spread_->shards(), *pager_));
}

void ModuleReplica::place_parts() {
  std::size_t of_kept = 0, of_spread = 0;
  for (const stage::NamedParameter& each : parameters_) {
    const bool goes = comes_and_goes(each);
    spread_place_.push_back(goes ? std::optional(of_spread) : std::nullopt);
    const std::size_t number = goes ? of_spread++ : of_kept++;
    if (!is_sharded()) {
      parts_.add(each.tensor);
    } else {
      parts_.add(goes ? spread_->shards() : *kept_, number);
    }
  }
}

void ModuleReplica::begin_compute(const char* run) {
  if (!pager_) return;
  if (!is_running_) pager_->begin_run(run);
  is_running_ = true;
  spread_->set_open(true);
  pager_->begin_compute();
}

void ModuleReplica::end_compute() {
  if (!pager_) return;
  spread_->set_open(false);
  pager_->end_compute();
}

void ModuleReplica::end_run() {
  if (!pager_) return;
  is_running_ = false;
  pager_->end_run();
}

void ModuleReplica::begin_forward(Forward forward) {
  ends_with_forward_ = forward == Forward::Evaluation && !is_running_;
  begin_compute(forward == Forward::Training ? "train" : "evaluate");
}

void ModuleReplica::end_forward() {
  end_compute();
  if (ends_with_forward_) end_run();
}

void ModuleReplica::backward(const at::Tensor& loss, double factor,
                             execute::Accumulation accumulation, Graph graph) {
  const bool ends = accumulation == execute::Accumulation::Ends;
  const bool leave_early = ends && !has_python(loss);
  begin_compute("backward");
  if (leave_early) {
    for (const auto& hooks : hooks_) hooks->before_last_backward();
  }
  torch::autograd::backward({loss}, {at::full_like(loss, factor)}, graph == Graph::Retained);
  end_compute();
  for (const auto& hooks : hooks_) {
    if (ends && !leave_early) hooks->before_last_backward();
    if (ends) hooks->reduce(std::nullopt);
  }
  end_run();
  if (ends) {
    for (const auto& hooks : hooks_) hooks->finish();
  }
}

void ModuleReplica::abandon() {
  if (!pager_) return;
  spread_->set_open(false);
  pager_->abandon_run();
  is_running_ = false;
  pager_->check();
}

std::vector<double> ModuleReplica::squared_norms() {
  const at::NoGradGuard no_grad;
  return parts_.squared_norms([this](const at::Tensor& of_slices) {
    if (is_sharded()) communicator_.all_reduce(of_slices, group_.group())->wait();
  });
}

void ModuleReplica::drop_gradients() {
  for (const stage::NamedParameter& each : parameters_) each.tensor.mutable_grad().reset();
  for (const Part& part : parts_.all()) part.tensor.mutable_grad().reset();
}

void ModuleReplica::gather() {
  if (kept_) kept_->gather();
  if (spread_) spread_->shards().gather();
}

}  // namespace penstock::train
