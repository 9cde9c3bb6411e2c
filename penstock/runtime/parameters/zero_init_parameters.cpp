#include "penstock/runtime/parameters/zero_init_parameters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>

namespace penstock::parameters {

ZeroInitParameters::ZeroInitParameters(const std::vector<stage::NamedParameter>& parameters,
                                       comm::ShardGroup& group, std::int64_t bucket_bytes)
    : own_(std::make_unique<ParameterShards>(
          parameters, group,
          partition::SharingRules{.stage = partition::ZeroStage::Parameters,
                                  .ranks = group.size(),
                                  .bucket_bytes = bucket_bytes,
                                  .one_rank_has_pieces = true})),
      shards_(*own_),
      numbers_(parameters.size()),
      held_(parameters.size()) {
  std::iota(numbers_.begin(), numbers_.end(), std::size_t{0});
}

ZeroInitParameters::ZeroInitParameters(ParameterShards& shards, Pager& pager)
    : shards_(shards), pager_(&pager) {
  const std::vector<partition::Holding>& holdings = shards.ownership().parameters;
  for (std::size_t i = 0; i < holdings.size(); ++i) {
    if (holdings[i].presence == partition::Presence::WhileUsed) numbers_.push_back(i);
  }
  held_.resize(numbers_.size());
}

std::vector<stage::NamedParameter> ZeroInitParameters::parameters() const {
  std::vector<stage::NamedParameter> parameters;
  for (const std::size_t number : numbers_) parameters.push_back(shards_.parameters()[number]);
  return parameters;
}

ParameterStatus ZeroInitParameters::status(std::size_t parameter) const {
  const Page& page = this->page(parameter);
  const bool is_open = pager_ != nullptr && pager_->is_computing();
  if (!page.is_here() || !(is_open || page.is_pinned())) return ParameterStatus::NotAvailable;
  return page.is_coming() ? ParameterStatus::InFlight : ParameterStatus::Available;
}

at::Tensor ZeroInitParameters::shard(std::size_t parameter) const {
  if (const ShardSlice* mine = slice(parameter)) return mine->values;
  return at::empty({0}, page(parameter).piece().options());
}

void ZeroInitParameters::say(Word::Kind what, std::size_t parameter) {
  if (pager_ != nullptr) pager_->say(what, page(parameter));
}

void ZeroInitParameters::hold(const std::vector<std::size_t>& parameters) {
  if (!parameters.empty()) say(Word::Kind::Gather, parameters.front());
  for (const std::size_t parameter : parameters) {
    page(parameter).pin();
    page(parameter).fetch();
  }
  for (const std::size_t parameter : parameters) {
    page(parameter).await();
    Held& held = held_[parameter];
    if (held.times++ == 0) held.version = tensor(parameter)._version();
  }
}

void ZeroInitParameters::release(const std::vector<std::size_t>& parameters) {
  for (const std::size_t parameter : parameters) {
    page(parameter).unpin();
    --held_[parameter].times;
  }
  for (const std::size_t parameter : parameters) {
    if (!page(parameter).is_pinned()) page(parameter).drop();
  }
}

void ZeroInitParameters::take_changes(std::size_t parameter, std::int32_t root) {
  const at::NoGradGuard no_grad;
  say(Word::Kind::Changes, parameter);
  shards_.group().broadcast(tensor(parameter).detach(), root)->wait();
  Page& page = this->page(parameter);
  page.piece().copy_(page.flat()[shards_.group().place()]);
  forget_changes({parameter});
}

// Whether a parameter was changed: by its version, or by its bytes where something was written
// behind autograd's back.
bool ZeroInitParameters::is_changed(std::size_t parameter) const {
  if (tensor(parameter)._version() != held_[parameter].version) return true;
  const ShardSlice* mine = slice(parameter);
  if (mine == nullptr) return false;
  const at::Tensor& flat = page(parameter).flat();
  const auto offset = static_cast<std::size_t>(
      (shards_.group().place() * flat.size(1) + mine->place.offset) * flat.element_size());
  return std::memcmp(static_cast<const std::byte*>(flat.const_data_ptr()) + offset,
                     mine->values.const_data_ptr(), mine->values.nbytes()) != 0;
}

std::vector<std::size_t> ZeroInitParameters::changed(
    const std::vector<std::size_t>& parameters) const {
  std::vector<std::size_t> changed;
  std::ranges::copy_if(parameters, std::back_inserter(changed),
                       [this](std::size_t parameter) { return is_changed(parameter); });
  return changed;
}

// A page that goes compares versions: they have those again that they came with.
void ZeroInitParameters::forget_changes(const std::vector<std::size_t>& parameters) {
  for (const std::size_t parameter : parameters) {
    c10::VariableVersion version = tensor(parameter).unsafeGetTensorImpl()->version_counter();
    version.set_version(held_[parameter].version);
  }
}

}  // namespace penstock::parameters
