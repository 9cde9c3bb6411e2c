#include "penstock/runtime/parameters/growing_parameters.h"

#include <ATen/core/grad_mode.h>

#include <unordered_set>
#include <utility>

#include "penstock/runtime/parameters/pager.h"

namespace penstock::parameters {
namespace {

// While it lives, parameters that are spread come when they are read, and go for the next.
class Reading {
 public:
  explicit Reading(const std::vector<ZeroInitParameters*>& all) {
    std::vector<std::shared_ptr<Page>> pages;
    for (const ZeroInitParameters* each : all) {
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
  std::optional<Pager> pager_;
};

// What was spread has them already, and becomes whole here unless it comes and goes again.
void share_first_values(const std::vector<ParameterSet>& sets,
                        const std::vector<ZeroInitParameters*>& spread_before,
                        const GrowingParameters& growing, comm::Communicator& communicator) {
  std::unordered_set<const at::TensorImpl*> goes_on, was_spread;
  partition::Persistence persistence(growing.options().zero.persistence);
  const partition::GrowingOwnership rules(growing.rules(), &persistence);
  for (const ParameterSet& set : sets) {
    for (const stage::NamedParameter& each : set.parameters) {
      const auto presence = rules.presence_of(described(each), set.may_leave);
      if (presence == partition::Presence::Whole) continue;
      goes_on.insert(each.tensor.unsafeGetTensorImpl());
    }
  }
  for (const ZeroInitParameters* spread : spread_before) {
    for (const stage::NamedParameter& each : spread->parameters()) {
      const at::TensorImpl* const tensor = each.tensor.unsafeGetTensorImpl();
      was_spread.insert(tensor);
      if (!goes_on.contains(tensor)) each.tensor.set_data(each.tensor.detach().clone());
    }
  }
  if (growing.group().size() == 1) return;
  for (const ParameterSet& set : sets) {
    for (const stage::NamedParameter& each : set.parameters) {
      if (was_spread.contains(each.tensor.unsafeGetTensorImpl())) continue;
      communicator.broadcast(each.tensor, growing.group().group(), /*root=*/0)->wait();
    }
  }
}

}  // namespace

GrowingParameters::GrowingParameters(const ReplicaOptions& options, comm::ShardGroup& group)
    : options_(options),
      group_(group),
      rules_(sharing_rules(options.zero, options.pieces, group.size(), options.device)),
      persistence_(options.zero.persistence) {}

void GrowingParameters::begin_set(partition::MayLeave may_leave) {
  may_leave_ = may_leave;
  sets_.push_back(std::make_unique<ParameterShards>(group_, rules_, options_.pieces, &persistence_,
                                                    &tied_pages_));
}

void GrowingParameters::add(const stage::NamedParameter& parameter, Ties ties,
                            std::int64_t copies) {
  sets_.back()->add(parameter, ties, may_leave_, copies);
}

void GrowingParameters::end_set() { sets_.back()->close(); }

std::unique_ptr<GrowingParameters> grow(const std::vector<ParameterSet>& sets,
                                        const ReplicaOptions& options,
                                        const std::vector<ZeroInitParameters*>& spread_before,
                                        comm::ShardGroup& group, comm::Communicator& communicator) {
  auto growing = std::make_unique<GrowingParameters>(options, group);
  const at::NoGradGuard no_grad;
  Reading reading(spread_before);
  share_first_values(sets, spread_before, *growing, communicator);
  for (const ParameterSet& given : sets) {
    growing->begin_set(given.may_leave);
    for (const stage::NamedParameter& each : given.parameters) growing->add(each);
    growing->end_set();
  }
  reading.end();
  return growing;
}

}  // namespace penstock::parameters
