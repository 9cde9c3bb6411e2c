#include "penstock/replicas/replicated_parameters.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "penstock/comm/or_fail.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/execute/gradients.h"
#include "penstock/execute/invariant_gradients.h"
#include "penstock/zero/paged_hooks.h"

namespace penstock::replicas {
namespace {

// While it lives, parameters that are spread come when they are read, and go for the next.
class Reading {
 public:
  explicit Reading(const std::vector<SpreadParameters*>& all) {
    std::vector<std::shared_ptr<zero::Page>> pages;
    for (const SpreadParameters* each : all) {
      const auto theirs = each->pages();
      pages.insert(pages.end(), theirs.begin(), theirs.end());
    }
    if (pages.empty()) return;
    pager_.emplace(all.front()->group(), std::move(pages), paging::Limits{});
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

struct ReplicatedParameters::Set {
  std::vector<stage::NamedParameter> trained() const {
    std::vector<stage::NamedParameter> trained;
    for (const std::size_t i : shards.trained()) trained.push_back(shards.parameters()[i]);
    return trained;
  }

  partition::Whereabouts whereabouts;
  zero::ParameterShards shards;
  std::unique_ptr<SpreadParameters> spread = nullptr;
  std::unique_ptr<execute::StageHooks> hooks = nullptr;
};

ReplicatedParameters::ReplicatedParameters(const ReplicaOptions& options, comm::ShardGroup& group,
                                           comm::Communicator& communicator)
    : options_(options),
      rules_(sharing_rules(options.zero, options.pieces, group.size(), options.device)),
      progress_(options.progress == nullptr ? own_progress_ : *options.progress),
      persistence_(options.zero.persistence),
      group_(group),
      communicator_(communicator) {}

ReplicatedParameters::ReplicatedParameters(const std::vector<ParameterSet>& sets,
                                           const ReplicaOptions& options,
                                           const std::vector<SpreadParameters*>& spread_before,
                                           comm::ShardGroup& group,
                                           comm::Communicator& communicator)
    : ReplicatedParameters(options, group, communicator) {
  const at::NoGradGuard no_grad;
  Reading reading(spread_before);
  share_first_values(sets, spread_before);
  for (const ParameterSet& given : sets) {
    begin_set(given.whereabouts);
    for (const stage::NamedParameter& each : given.parameters) add(each);
    end_set();
  }
  reading.end();
  close();
}

ReplicatedParameters::~ReplicatedParameters() = default;

void ReplicatedParameters::begin_set(partition::Whereabouts whereabouts) {
  sets_.push_back(
      std::make_unique<Set>(Set{whereabouts, zero::ParameterShards(group_, rules_, options_.pieces,
                                                                   &persistence_, &tied_pages_)}));
}

void ReplicatedParameters::add(const stage::NamedParameter& parameter, zero::Ties ties) {
  Set& set = *sets_.back();
  set.shards.add(parameter, ties, set.whereabouts);
}

void ReplicatedParameters::end_set() {
  Set& set = *sets_.back();
  set.shards.close();
  place(set);
}

void ReplicatedParameters::close() {
  if (rules_.come_and_go()) build_pager();
  for (const auto& set : sets_) {
    if (pager_) set->spread = std::make_unique<SpreadParameters>(set->shards, *pager_);
    set->hooks = make_hooks(*set);
  }
}

void ReplicatedParameters::build_pager() {
  std::vector<std::shared_ptr<zero::Page>> pages;
  for (const auto& set : sets_) {
    for (const auto& page : set->shards.pages()) {
      if (std::ranges::find(pages, page) == pages.end()) pages.push_back(page);
    }
  }
  const bool all_stay =
      std::ranges::none_of(pages, [](const auto& page) { return page->may_go(); });
  if (all_stay) return;
  pager_ = std::make_unique<zero::Pager>(group_, std::move(pages), options_.zero.limits);
}

std::unique_ptr<execute::StageHooks> ReplicatedParameters::make_hooks(Set& set) {
  if (options_.order == GradientSums::Invariant) {
    return std::make_unique<execute::InvariantGradients>(set.trained(), communicator_, group_);
  }
  if (pager_) return std::make_unique<zero::PagedHooks>(set.shards, *pager_, options_.sums);
  if (set.shards.trained().empty()) return std::make_unique<execute::StageHooks>();
  if (is_cut()) return std::make_unique<zero::ShardedGradients>(set.shards, options_.sums);
  return std::make_unique<execute::GradientReducer>(set.trained(), group_, rules_.bucket_bytes,
                                                    options_.sums);
}

// What was spread has them already, and becomes whole here unless it comes and goes again.
void ReplicatedParameters::share_first_values(const std::vector<ParameterSet>& sets,
                                              const std::vector<SpreadParameters*>& spread_before) {
  std::unordered_set<const at::TensorImpl*> goes_on, was_spread;
  const partition::GrowingOwnership rules(rules_, &persistence_);
  for (const ParameterSet& set : sets) {
    for (const stage::NamedParameter& each : set.parameters) {
      const auto presence = rules.presence_of(zero::described(each), set.whereabouts);
      if (presence == partition::Presence::Whole) continue;
      goes_on.insert(each.tensor.unsafeGetTensorImpl());
    }
  }
  for (const SpreadParameters* spread : spread_before) {
    for (const stage::NamedParameter& each : spread->parameters()) {
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

void ReplicatedParameters::place(const Set& set) {
  const std::vector<partition::Holding>& holdings = set.shards.ownership().parameters;
  std::size_t of_spread = 0;
  for (std::size_t i = 0; i < holdings.size(); ++i) {
    std::optional<std::size_t>& place = spread_place_.emplace_back();
    if (holdings[i].presence == partition::Presence::WhileUsed) place = of_spread++;
    if (holdings[i].updater == partition::Updater::Nobody) continue;
    if (holdings[i].is_tied && !tied_.insert(holdings[i].name).second) continue;
    if (holdings[i].updater == partition::Updater::EveryRank) {
      parts_.add(set.shards.parameters()[i].tensor);
    } else {
      parts_.add(set.shards, i);
    }
  }
}

const partition::Ownership& ReplicatedParameters::ownership(std::size_t set) const {
  return sets_[set]->shards.ownership();
}

// By the rules of place().
std::vector<std::vector<KeptParameter>> ReplicatedParameters::kept() const {
  std::vector<std::vector<KeptParameter>> all;
  std::set<std::string> tied;
  std::size_t parts = 0;
  for (const auto& set : sets_) {
    std::vector<KeptParameter>& of_set = all.emplace_back();
    const std::vector<partition::Holding>& holdings = set->shards.ownership().parameters;
    for (std::size_t i = 0; i < holdings.size(); ++i) {
      const stage::NamedParameter& parameter = set->shards.parameters()[i];
      const zero::ShardSlice* const slice = set->shards.slice_of(i);
      const bool is_slice = holdings[i].bucket.has_value();
      if (is_slice && slice == nullptr) continue;
      KeptParameter kept{.parameter = parameter,
                         .values = is_slice ? slice->values : parameter.tensor,
                         .first = is_slice ? slice->place.first : 0,
                         .is_slice = is_slice};
      const bool is_updated = holdings[i].updater != partition::Updater::Nobody;
      if (is_updated && (!holdings[i].is_tied || tied.insert(holdings[i].name).second)) {
        kept.part = parts++;
      }
      of_set.push_back(std::move(kept));
    }
  }
  return all;
}

at::Tensor ReplicatedParameters::part_of(std::size_t set, const at::Tensor& parameter) const {
  if (!is_cut()) return parameter;
  const zero::ParameterShards& shards = sets_[set]->shards;
  const auto& all = shards.parameters();
  const auto found = std::ranges::find_if(
      all, [&](const stage::NamedParameter& each) { return each.tensor.is_same(parameter); });
  const zero::ShardSlice* const slice =
      shards.slice_of(static_cast<std::size_t>(found - all.begin()));
  return slice == nullptr ? at::Tensor() : slice->values;
}

execute::StageHooks& ReplicatedParameters::hooks(std::size_t set) { return *sets_[set]->hooks; }

SpreadParameters* ReplicatedParameters::spread(std::size_t set) {
  SpreadParameters* const spread = sets_[set]->spread.get();
  return spread != nullptr && !spread->parameters().empty() ? spread : nullptr;
}

std::int64_t ReplicatedParameters::file_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& set : sets_) bytes += set->shards.file_bytes();
  return bytes;
}

execute::StepResult ReplicatedParameters::run(const char* name,
                                              const std::function<execute::StepResult()>& program) {
  comm::or_fail(communicator_, [this] { check_frozen(); });
  if (!pager_) return program();
  return comm::or_fail(communicator_, [&] {
    try {
      pager_->begin_run(name);
      execute::StepResult result = program();
      pager_->end_run();
      return result;
    } catch (...) {
      abandon_run();
      throw;
    }
  });
}

void ReplicatedParameters::abandon_run() {
  if (pager_) pager_->abandon_run();
}

void ReplicatedParameters::check_frozen() const {
  for (const auto& set : sets_) {
    const std::vector<partition::Holding>& holdings = set->shards.ownership().parameters;
    for (std::size_t i = 0; i < holdings.size(); ++i) {
      const bool was_frozen = !holdings[i].is_trainable;
      if (!was_frozen || !set->shards.parameters()[i].tensor.requires_grad()) continue;
      throw Error(str("parameter ", in_quotes(holdings[i].name),
                      " requires a gradient now, and was frozen when training was set up: nothing "
                      "would update it"),
                  {"call requires_grad_(True) before penstock.initialize(), or before a Trainer is "
                   "made"});
    }
  }
}

std::vector<double> ReplicatedParameters::squared_norms() {
  const at::NoGradGuard no_grad;
  return parts_.squared_norms([this](const at::Tensor& of_slices) {
    if (!is_cut()) return;
    const execute::WaitMark wait(progress_, "sharing the gradient norm with replicas");
    communicator_.all_reduce(of_slices, group_.group())->wait();
  });
}

void ReplicatedParameters::drop_gradients() {
  for (const auto& set : sets_) {
    set->hooks->drop_sums();
    for (const std::size_t i : set->shards.trained()) {
      set->shards.parameters()[i].tensor.mutable_grad().reset();
    }
  }
  for (const update::Part& part : parts_.all()) part.tensor.mutable_grad().reset();
}

void ReplicatedParameters::gather() {
  if (!is_cut()) return;
  const execute::WaitMark wait(progress_, "gathering updated parameters");
  for (const auto& set : sets_) set->shards.gather([this] { progress_.advance(); });
}

void ReplicatedParameters::unshard() {
  if (!pager_) return;
  const execute::WaitMark wait(progress_, "gathering whole parameters");
  for (const auto& set : sets_) {
    set->shards.unshard();
    progress_.advance();
  }
}

void ReplicatedParameters::reshard() {
  if (!pager_) return;
  try {
    for (const auto& set : sets_) set->shards.reshard();
  } catch (...) {
    pager_->note(std::current_exception());
  }
}

}  // namespace penstock::replicas
