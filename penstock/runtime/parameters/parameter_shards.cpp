#include "penstock/runtime/parameters/parameter_shards.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <memory>
#include <set>
#include <utility>

#include "penstock/core/check.h"

namespace penstock::parameters {
namespace {

// What is sent and not yet read takes memory, too.
constexpr std::size_t kGathersUnderWay = 4;

}  // namespace

partition::Parameter described(const stage::NamedParameter& parameter, Ties ties,
                               std::int64_t copies) {
  const at::Tensor& tensor = parameter.tensor;
  return {.name = parameter.name,
          .type = c10::toString(tensor.scalar_type()),
          .element_bytes = static_cast<std::int64_t>(tensor.element_size()),
          .elements = tensor.numel(),
          .is_trainable = tensor.requires_grad(),
          .is_tied = ties == Ties::Shared,
          .copies = copies};
}

ParameterShards::ParameterShards(comm::ShardGroup& group, const partition::SharingRules& rules,
                                 const offload::Where& pieces, partition::Persistence* persistence,
                                 TiedPages* tied)
    : group_(group), tied_(tied), growing_(rules, persistence) {
  PENSTOCK_CHECK(rules.ranks == group.size(), rules.ranks, " ranks, and a group of ", group.size());
  if (rules.come_and_go()) pieces_ = std::make_shared<PieceMemory>(pieces);
}

ParameterShards::ParameterShards(std::vector<stage::NamedParameter> parameters,
                                 comm::ShardGroup& group, const partition::SharingRules& rules,
                                 const offload::Where& pieces)
    : ParameterShards(group, rules, pieces) {
  for (stage::NamedParameter& parameter : parameters) add(std::move(parameter));
  close();
}

void ParameterShards::add(stage::NamedParameter parameter, Ties ties, partition::MayLeave may_leave,
                          std::int64_t copies) {
  if (parameter.tensor.requires_grad()) trained_.push_back(parameters_.size());
  const partition::Parameter size = described(parameter, ties, copies);
  parameters_.push_back(std::move(parameter));
  if (const auto full = growing_.add(size, may_leave)) make_page(*full);
}

void ParameterShards::close() {
  for (const std::size_t bucket : growing_.close()) make_page(bucket);
  page_of_.resize(parameters_.size());
  cuts_ = ownership().slices_by_parameter();
  slice_of_.resize(parameters_.size());
  for (const partition::Slice& slice : ownership().slices(group_.place())) {
    slice_of_[slice.parameter] = slices_.size();
    slices_.push_back(
        {.place = slice,
         .values = pages_[slice.bucket]->piece().narrow(0, slice.offset, slice.count)});
  }
}

// A tied parameter's is that of its first copy.
void ParameterShards::make_page(std::size_t b) {
  const partition::Bucket& bucket = ownership().buckets[b];
  pages_.resize(ownership().buckets.size());
  is_shared_.resize(pages_.size());
  page_of_.resize(parameters_.size());
  const std::size_t first = bucket.parameters.front();
  std::shared_ptr<Page>* const of_copies = tied_ != nullptr && ownership().parameters[first].is_tied
                                               ? &(*tied_)[parameters_[first].name]
                                               : nullptr;
  is_shared_[b] = of_copies != nullptr && *of_copies != nullptr;
  if (is_shared_[b]) {
    pages_[b] = *of_copies;
    pages_[b]->hold_copy(parameters_[first]);
  } else {
    pages_[b] = new_page(bucket);
    if (of_copies != nullptr) *of_copies = pages_[b];
  }
  for (const std::size_t p : bucket.parameters) page_of_[p] = pages_[b].get();
}

std::shared_ptr<Page> ParameterShards::new_page(const partition::Bucket& bucket) const {
  const at::Tensor& first = parameters_[bucket.parameters.front()].tensor;
  const bool goes = bucket.presence == partition::Presence::WhileUsed;
  const auto page = std::make_shared<Page>(
      group_, bucket.piece, first.options().requires_grad(false), goes ? pieces_ : nullptr);
  for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
    page->hold(parameters_[bucket.parameters[i]], bucket.offsets[i]);
  }
  page->close();
  return page;
}

void ParameterShards::gather(const std::function<void()>& advanced) {
  std::deque<std::unique_ptr<comm::Transfer>> under_way;
  const auto await_first = [&] {
    under_way.front()->wait();
    under_way.pop_front();
    if (advanced) advanced();
  };
  for (std::size_t b = 0; b < pages_.size(); ++b) {
    std::unique_ptr<comm::Transfer> transfer =
        is_shared_[b] ? nullptr : pages_[b]->gather_updates();
    if (!transfer) continue;
    transfer->begin();
    under_way.push_back(std::move(transfer));
    if (under_way.size() > kGathersUnderWay) await_first();
  }
  while (!under_way.empty()) await_first();
}

void ParameterShards::unshard() {
  if (is_unsharded_ && age_ == group_.age()) return;
  is_unsharded_ = true;
  age_ = group_.age();
  for (std::size_t b = 0; b < pages_.size(); ++b) {
    pages_[b]->pin();
    if (b + 1 < pages_.size()) pages_[b + 1]->read_ahead();
    pages_[b]->fetch();
    if (b >= kGathersUnderWay) pages_[b - kGathersUnderWay]->await();
  }
  for (const auto& page : pages_) page->await();
}

void ParameterShards::reshard() {
  if (!is_unsharded_) return;
  is_unsharded_ = false;
  if (age_ != group_.age()) return;  // The pager has given them up.
  for (const auto& page : pages_) page->unpin();
  for (const auto& page : pages_) {
    if (!page->is_pinned()) page->drop();
  }
}

std::vector<stage::NamedParameter> ParameterShards::keep_changes() {
  std::vector<stage::NamedParameter> changed;
  for (const auto& page : pages_) {
    if (!page->is_here() || !page->may_go()) continue;
    page->await();
    const std::int64_t first = group_.place() * page->piece().numel();
    auto set = page->held().changed(page->flat()[group_.place()], page->piece(), first);
    if (set.empty()) continue;
    page->take_row();
    std::ranges::move(set, std::back_inserter(changed));
  }
  return changed;
}

void ParameterShards::adopt(std::int32_t root) {
  PENSTOCK_CHECK(!pieces_ || is_unsharded_, "pages are away");
  for (std::size_t b = 0; b < pages_.size(); ++b) {
    if (is_shared_[b]) continue;
    const at::NoGradGuard no_grad;
    group_.broadcast(pages_[b]->flat(), root)->wait();
    pages_[b]->take_row();
  }
}

}  // namespace penstock::parameters
