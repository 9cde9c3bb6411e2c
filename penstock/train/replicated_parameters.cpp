#include "penstock/train/replicated_parameters.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/execute/gradients.h"
#include "penstock/zero/paged_hooks.h"

namespace penstock::train {
namespace {

// With stage 3, gradients of kept parameters come between those of spread ones.
zero::GradientBuckets buckets_of(ZeroStage stage) {
  if (stage == ZeroStage::Parameters) return zero::GradientBuckets::ReleasedLast;
  return stage == ZeroStage::OptimizerStates ? zero::GradientBuckets::Kept
                                             : zero::GradientBuckets::Released;
}

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

}  // namespace

// The hooks of a set: those of trained parameters that are kept, then those of what comes and goes.
class ReplicatedParameters::Set : public execute::StageHooks {
 public:
  explicit Set(ReplicatedParameters& all) : all_(all) {}

  void keep(const std::vector<stage::NamedParameter>& parameters, const ZeroOptions& zero,
            comm::ShardGroup& group, bool is_sharded) {
    if (parameters.empty()) return;
    if (!is_sharded) {
      of_kept_ = std::make_unique<execute::GradientReducer>(parameters, group, zero.bucket_bytes);
      return;
    }
    kept_ = std::make_unique<zero::ParameterShards>(parameters, group, zero.bucket_bytes,
                                                    zero::Keeps::Whole);
    of_kept_ = std::make_unique<zero::ShardedGradients>(*kept_, buckets_of(zero.stage));
  }
  void spread(const std::vector<stage::NamedParameter>& parameters, const ZeroOptions& zero,
              comm::ShardGroup& group) {
    if (parameters.empty()) return;
    spread_ = std::make_unique<SpreadModule>(parameters, group, zero.bucket_bytes);
  }
  void bring_by(zero::Pager& pager) {
    if (spread_) of_spread_ = std::make_unique<zero::PagedHooks>(spread_->shards(), pager);
  }

  zero::ParameterShards* kept() { return kept_.get(); }
  SpreadModule* spread() { return spread_.get(); }

  void unshard() override {
    each([](StageHooks& hooks) { hooks.unshard(); });
  }
  void reshard() override {
    each([](StageHooks& hooks) { hooks.reshard(); });
  }
  // What is computed may read the parameters of any set.
  void before_compute() override {
    all_.set_open(true);
    if (all_.pager_) all_.pager_->begin_compute();
  }
  void after_compute() override {
    all_.set_open(false);
    if (all_.pager_) all_.pager_->end_compute();
  }
  bool is_weight(const at::Tensor& value) const override {
    return all_.pager_ && all_.pager_->has(value);
  }
  void after_backward(std::int64_t microbatch) override {
    each([&](StageHooks& hooks) { hooks.after_backward(microbatch); });
  }
  void before_last_backward() override {
    each([](StageHooks& hooks) { hooks.before_last_backward(); });
  }
  void reduce(std::optional<Microbatch> microbatch) override {
    each([&](StageHooks& hooks) { hooks.reduce(microbatch); });
  }
  void finish() override {
    each([](StageHooks& hooks) { hooks.finish(); });
  }

 private:
  template <class Call>
  void each(const Call& call) {
    if (of_kept_) call(*of_kept_);
    if (of_spread_) call(*of_spread_);
  }

  ReplicatedParameters& all_;
  std::unique_ptr<zero::ParameterShards> kept_;  // Whole everywhere, updated in slices.
  std::unique_ptr<SpreadModule> spread_;
  std::unique_ptr<execute::StageHooks> of_kept_, of_spread_;
};

ReplicatedParameters::ReplicatedParameters(const std::vector<ParameterSet>& sets,
                                           const ZeroOptions& zero,
                                           const std::vector<SpreadModule*>& spread_before,
                                           comm::ShardGroup& group,
                                           comm::Communicator& communicator)
    : zero_(zero), persistence_(zero.persistence), group_(group), communicator_(communicator) {
  const at::NoGradGuard no_grad;
  Reading reading(spread_before);
  share_first_values(sets, spread_before);
  std::vector<std::shared_ptr<zero::Page>> pages;
  for (const ParameterSet& given : sets) {
    std::vector<stage::NamedParameter> kept, spread;
    for (const stage::NamedParameter& each : given.parameters) {
      const bool is_trained = each.tensor.requires_grad();
      (is_trained ? trained_ : frozen_).push_back(each);
      if (goes(given, each)) {
        spread.push_back(each);
      } else if (is_trained) {
        kept.push_back(each);
      }
    }
    Set& set = *sets_.emplace_back(std::make_unique<Set>(*this));
    set.keep(kept, zero, group, is_sharded());
    set.spread(spread, zero, group);
    place(given, set);
    if (set.spread() == nullptr) continue;
    const auto& theirs = set.spread()->shards().pages();
    pages.insert(pages.end(), theirs.begin(), theirs.end());
  }
  if (!pages.empty()) {
    pager_ = std::make_unique<zero::Pager>(group, std::move(pages), zero.limits);
    for (const auto& set : sets_) set->bring_by(*pager_);
  }
  reading.end();
}

ReplicatedParameters::~ReplicatedParameters() = default;

execute::StageHooks& ReplicatedParameters::hooks(std::size_t set) { return *sets_[set]; }

SpreadModule* ReplicatedParameters::spread(std::size_t set) { return sets_[set]->spread(); }

bool ReplicatedParameters::goes(const ParameterSet& set, const stage::NamedParameter& parameter) {
  const bool may_go =
      set.whereabouts == Whereabouts::ComeAndGo || !parameter.tensor.requires_grad();
  return may_go && zero_.stage == ZeroStage::Parameters && group_.size() > 1 &&
         !persistence_.stays(parameter.name, parameter.tensor.numel());
}

// What was spread has them already, and becomes whole here unless it comes and goes again.
void ReplicatedParameters::share_first_values(const std::vector<ParameterSet>& sets,
                                              const std::vector<SpreadModule*>& spread_before) {
  std::unordered_set<const at::TensorImpl*> goes_on, was_spread;
  for (const ParameterSet& set : sets) {
    for (const stage::NamedParameter& each : set.parameters) {
      if (goes(set, each)) goes_on.insert(each.tensor.unsafeGetTensorImpl());
    }
  }
  for (const SpreadModule* module : spread_before) {
    for (const stage::NamedParameter& each : module->shards().parameters()) {
      const at::TensorImpl* const tensor = each.tensor.unsafeGetTensorImpl();
      was_spread.insert(tensor);
      if (!goes_on.contains(tensor)) each.tensor.set_data(each.tensor.detach().clone());
    }
  }
  if (group_.size() == 1) return;
  for (const ParameterSet& set : sets) {
    for (const stage::NamedParameter& each : set.parameters) {
      if (was_spread.contains(each.tensor.unsafeGetTensorImpl())) continue;
      communicator_.broadcast(each.tensor, group_.group(), /*root=*/0)->wait();
    }
  }
}

void ReplicatedParameters::place(const ParameterSet& given, Set& set) {
  std::size_t of_kept = 0, of_spread = 0;
  for (const stage::NamedParameter& each : given.parameters) {
    std::optional<std::size_t>& place = spread_place_.emplace_back();
    if (goes(given, each)) place = of_spread++;
    if (!each.tensor.requires_grad()) continue;
    if (!is_sharded()) {
      parts_.add(each.tensor);
    } else if (place) {
      parts_.add(set.spread()->shards(), *place);
    } else {
      parts_.add(*set.kept(), of_kept++);
    }
  }
}

void ReplicatedParameters::check_frozen() const {
  for (const stage::NamedParameter& each : frozen_) {
    if (!each.tensor.requires_grad()) continue;
    throw Error(str("parameter ", in_quotes(each.name),
                    " requires a gradient now, and was frozen when training was set up: nothing "
                    "would update it"),
                {"call requires_grad_(True) before penstock.initialize()"});
  }
}

void ReplicatedParameters::set_open(bool is_open) {
  for (const auto& set : sets_) {
    if (set->spread() != nullptr) set->spread()->set_open(is_open);
  }
}

void ReplicatedParameters::abandon_run() {
  if (!pager_) return;
  set_open(false);
  pager_->abandon_run();
}

std::vector<double> ReplicatedParameters::squared_norms() {
  const at::NoGradGuard no_grad;
  return parts_.squared_norms([this](const at::Tensor& of_slices) {
    if (is_sharded()) communicator_.all_reduce(of_slices, group_.group())->wait();
  });
}

void ReplicatedParameters::drop_gradients() {
  for (const stage::NamedParameter& each : trained_) each.tensor.mutable_grad().reset();
  for (const Part& part : parts_.all()) part.tensor.mutable_grad().reset();
}

void ReplicatedParameters::gather() {
  for (const auto& set : sets_) {
    if (set->kept() != nullptr) set->kept()->gather();
    if (set->spread() != nullptr) set->spread()->shards().gather();
  }
}

}  // namespace penstock::train
