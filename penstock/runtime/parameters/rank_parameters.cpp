#include "penstock/runtime/parameters/rank_parameters.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/comm/calls.h"
#include "penstock/runtime/comm/or_fail.h"
#include "penstock/runtime/parameters/gradients.h"
#include "penstock/runtime/parameters/invariant_gradients.h"
#include "penstock/runtime/parameters/paged_hooks.h"
#include "penstock/runtime/parameters/sharded_gradients.h"

namespace penstock::parameters {

struct RankParameters::Set {
  ParameterShards* shards;
  std::unique_ptr<ZeroInitParameters> spread;
  std::unique_ptr<execute::StageHooks> hooks;
};

RankParameters::RankParameters(std::unique_ptr<GrowingParameters> grown,
                               comm::Communicator& communicator)
    : grown_(std::move(grown)),
      communicator_(communicator),
      progress_(grown_->options().progress == nullptr ? own_progress_
                                                      : *grown_->options().progress),
      pager_(make_pager()),
      words_tag_(grown_->group().reserve_tags(1)) {
  std::vector<ParameterShards*> all;
  for (const auto& shards : grown_->sets()) {
    place(*shards);
    sets_.push_back({shards.get(),
                     pager_ ? std::make_unique<ZeroInitParameters>(*shards, *pager_) : nullptr,
                     make_hooks(*shards)});
    all.push_back(shards.get());
  }
  changes_.emplace(std::move(all));
}

RankParameters::RankParameters(const std::vector<ParameterSet>& sets, const ReplicaOptions& options,
                               const std::vector<ZeroInitParameters*>& spread_before,
                               comm::ShardGroup& group, comm::Communicator& communicator)
    : RankParameters(grow(sets, options, spread_before, group, communicator), communicator) {}

RankParameters::~RankParameters() = default;

// Null where all pages stay.
std::unique_ptr<Pager> RankParameters::make_pager() const {
  std::vector<std::shared_ptr<Page>> pages;
  for (const auto& set : grown_->sets()) {
    for (const auto& page : set->pages()) {
      if (std::ranges::find(pages, page) == pages.end()) pages.push_back(page);
    }
  }
  if (std::ranges::none_of(pages, &Page::may_go)) return nullptr;
  return std::make_unique<Pager>(grown_->group(), std::move(pages), grown_->options().zero.limits,
                                 &progress_);
}

std::unique_ptr<execute::StageHooks> RankParameters::make_hooks(ParameterShards& shards) {
  const ReplicaOptions& options = grown_->options();
  std::vector<stage::NamedParameter> trained;
  for (const std::size_t i : shards.trained()) trained.push_back(shards.parameters()[i]);
  if (options.order == GradientSums::Invariant) {
    std::function<void()> whole_gradients;
    if (options.whole_gradients) {
      whole_gradients = [sum = options.whole_gradients, set = sets_.size()] { sum(set); };
    }
    if (pager_) {
      return std::make_unique<PagedHooks<InvariantShards>>(*pager_, shards, communicator_,
                                                           std::move(whole_gradients));
    }
    if (grown_->rules().are_cut()) {
      return std::make_unique<InvariantShards>(shards, communicator_, std::move(whole_gradients));
    }
    return std::make_unique<InvariantGradients>(trained, communicator_, grown_->group(),
                                                std::move(whole_gradients));
  }
  if (pager_) {
    return std::make_unique<PagedHooks<ShardedGradients>>(*pager_, shards, options.sums);
  }
  if (trained.empty()) return std::make_unique<execute::StageHooks>();
  if (grown_->rules().are_cut()) {
    return std::make_unique<ShardedGradients>(shards, options.sums, options.sums_under_way_max);
  }
  return std::make_unique<GradientReducer>(trained, grown_->group(), grown_->rules().bucket_bytes,
                                           options.sums, options.sums_under_way_max);
}

void RankParameters::place(ParameterShards& shards) {
  const std::vector<partition::Holding>& holdings = shards.ownership().parameters;
  std::size_t of_spread = 0;
  for (std::size_t i = 0; i < holdings.size(); ++i) {
    std::optional<std::size_t>& place = spread_place_.emplace_back();
    if (holdings[i].presence == partition::Presence::WhileUsed) place = of_spread++;
    if (holdings[i].updater == partition::Updater::Nobody) continue;
    if (holdings[i].is_tied && !tied_.insert(holdings[i].name).second) continue;
    if (holdings[i].updater == partition::Updater::EveryRank) {
      parts_.add(shards.parameters()[i].tensor);
    } else {
      parts_.add(shards, i);
    }
  }
}

std::size_t RankParameters::sets() const { return sets_.size(); }

// Has parts by the rules of place().
std::vector<std::vector<OwnedElements>> RankParameters::kept() const {
  std::vector<std::vector<OwnedElements>> all;
  std::set<std::string> tied;
  std::size_t parts = 0;
  for (const Set& set : sets_) {
    std::vector<OwnedElements>& of_set = all.emplace_back();
    const std::vector<partition::Holding>& holdings = set.shards->ownership().parameters;
    for (std::size_t i = 0; i < holdings.size(); ++i) {
      const stage::NamedParameter& parameter = set.shards->parameters()[i];
      const ShardSlice* const slice = set.shards->slice_of(i);
      const bool is_slice = holdings[i].bucket.has_value();
      if (is_slice && slice == nullptr) continue;
      OwnedElements kept{.parameter = parameter,
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

at::Tensor RankParameters::part_of(std::size_t set, const at::Tensor& parameter) const {
  if (!grown_->rules().are_cut()) return parameter;
  const ParameterShards& shards = *sets_[set].shards;
  const auto& all = shards.parameters();
  const auto found = std::ranges::find_if(
      all, [&](const stage::NamedParameter& each) { return each.tensor.is_same(parameter); });
  const ShardSlice* const slice = shards.slice_of(static_cast<std::size_t>(found - all.begin()));
  return slice == nullptr ? at::Tensor() : slice->values;
}

execute::StageHooks& RankParameters::hooks(std::size_t set) { return *sets_[set].hooks; }

ZeroInitParameters* RankParameters::spread(std::size_t set) {
  ZeroInitParameters* const spread = sets_[set].spread.get();
  return spread != nullptr && !spread->parameters().empty() ? spread : nullptr;
}

std::int64_t RankParameters::file_bytes() const {
  std::int64_t bytes = 0;
  for (const Set& set : sets_) bytes += set.shards->file_bytes();
  return bytes;
}

execute::StepResult RankParameters::run(const char* name,
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

void RankParameters::abandon_run() {
  if (pager_) pager_->abandon_run();
}

void RankParameters::check_frozen() const {
  for (const Set& set : sets_) {
    const std::vector<partition::Holding>& holdings = set.shards->ownership().parameters;
    for (std::size_t i = 0; i < holdings.size(); ++i) {
      const bool was_frozen = !holdings[i].is_trainable;
      if (!was_frozen || !set.shards->parameters()[i].tensor.requires_grad()) continue;
      throw Error(str("parameter ", in_quotes(holdings[i].name),
                      " requires a gradient now, and was frozen when training was set up: nothing "
                      "would update it"),
                  {"call requires_grad_(True) before penstock.initialize(), or before a Trainer is "
                   "made"});
    }
  }
}

std::vector<double> RankParameters::squared_norms(std::span<double> words) {
  const at::NoGradGuard no_grad;
  if (grown_->rules().are_cut()) {
    const auto share = [this](const at::Tensor& of_slices) {
      const execute::WaitMark wait(progress_, "sharing the gradient norm with replicas");
      communicator_.all_reduce(of_slices, grown_->group().group())->wait();
    };
    return parts_.squared_norms(share, words);
  }
  std::unique_ptr<comm::Transfer> gathered;
  if (!words.empty()) {
    const at::Tensor rows = at::from_blob(words.data(), {std::ssize(words), 1}, at::kDouble);
    gathered = grown_->group().all_gather(rows, words_tag_);
  }
  std::vector<double> norms = parts_.squared_norms([](const at::Tensor& /*whole*/) {});
  if (gathered) {
    const execute::WaitMark wait(progress_, "comparing the step with replicas");
    gathered->wait();
  }
  return norms;
}

void RankParameters::drop_gradients() {
  for (const Set& set : sets_) {
    set.hooks->drop_sums();
    for (const std::size_t i : set.shards->trained()) {
      set.shards->parameters()[i].tensor.mutable_grad().reset();
    }
  }
  for (const Part& part : parts_.all()) part.tensor.mutable_grad().reset();
}

void RankParameters::gather() {
  if (!grown_->rules().are_cut()) return;
  const execute::WaitMark wait(progress_, "gathering updated parameters");
  for (const Set& set : sets_) set.shards->gather([this] { progress_.advance(); });
}

void RankParameters::unshard() {
  if (!pager_) return;
  const comm::Call call("whole_parameters()", comm::Callers::Some);
  const execute::WaitMark wait(progress_, "gathering whole parameters");
  for (const Set& set : sets_) {
    set.shards->unshard();
    progress_.advance();
  }
}

RankParameters::WholeTrained::WholeTrained(RankParameters& parameters) : parameters_(parameters) {
  age_ = parameters.grown_->group().age();
  if (!parameters.pager_) return;
  const execute::WaitMark wait(parameters.progress_, "gathering whole parameters");
  for (const Set& set : parameters.sets_) {
    const std::vector<partition::Bucket>& buckets = set.shards->ownership().buckets;
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      if (buckets[b].is_trainable) pages_.push_back(set.shards->pages()[b]);
    }
  }
  for (const auto& page : pages_) {
    page->pin();
    page->fetch();
    page->await();
    parameters.progress_.advance();
  }
}

RankParameters::WholeTrained::~WholeTrained() {
  if (age_ != parameters_.grown_->group().age()) return;  // The pager has given them up.
  try {
    for (const auto& page : pages_) page->unpin();
    for (const auto& page : pages_) {
      if (!page->is_pinned()) page->drop();
    }
  } catch (...) {
    parameters_.pager_->note(std::current_exception());
  }
}

void RankParameters::reshard() {
  if (!pager_) return;
  try {
    changes_->find();
    for (const Set& set : sets_) set.shards->reshard();
  } catch (...) {
    pager_->note(std::current_exception());
  }
}

}  // namespace penstock::parameters
