#include "penstock/zero/parameter_shards.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <set>
#include <utility>

#include "penstock/core/check.h"

namespace penstock::zero {
namespace {

// What is sent and not yet read takes memory, too.
constexpr std::size_t kGathersUnderWay = 4;

std::vector<partition::ShardedParameter> sizes_of(
    const std::vector<stage::NamedParameter>& parameters, const TiedPages* tied) {
  std::vector<partition::ShardedParameter> sizes;
  for (const stage::NamedParameter& each : parameters) {
    sizes.push_back({.name = each.name,
                     .type = c10::toString(each.tensor.scalar_type()),
                     .element_bytes = static_cast<std::int64_t>(each.tensor.element_size()),
                     .elements = each.tensor.numel(),
                     .is_alone = tied != nullptr && tied->contains(each.name)});
  }
  return sizes;
}

}  // namespace

ParameterShards::ParameterShards(std::vector<stage::NamedParameter> parameters,
                                 comm::ShardGroup& group, std::int64_t bucket_bytes,
                                 const Kept& keeps, TiedPages* tied)
    : parameters_(std::move(parameters)),
      group_(group),
      layout_(partition::lay_out_shards(sizes_of(parameters_, tied), group.size(), bucket_bytes)),
      cuts_(layout_.slices_by_parameter()),
      page_of_(parameters_.size()) {
  if (keeps.what == Keeps::Piece) {
    const std::int64_t bytes = piece_bytes(tied);
    pieces_ = std::make_shared<PieceMemory>(keeps.pieces, bytes);
    if (pieces_->file() != nullptr) file_bytes_ = bytes;
  }
  for (std::size_t b = 0; b < layout_.buckets.size(); ++b) {
    add_page(b, tied);
    for (const std::size_t p : layout_.buckets[b].parameters) page_of_[p] = pages_.back().get();
  }
  for (const partition::Slice& slice : layout_.slices(group.place())) {
    slices_.push_back(
        {.place = slice,
         .values = pages_[slice.bucket]->piece().narrow(0, slice.offset, slice.count)});
  }
}

const ShardSlice* ParameterShards::slice_of(std::size_t parameter) const {
  const auto found = std::ranges::find_if(
      slices_, [&](const ShardSlice& slice) { return slice.place.parameter == parameter; });
  return found == slices_.end() ? nullptr : &*found;
}

std::shared_ptr<Page>* ParameterShards::tied_page(std::size_t bucket, TiedPages* tied) const {
  const partition::ShardedParameter& first =
      layout_.parameters[layout_.buckets[bucket].parameters.front()];
  return first.is_alone ? &tied->at(first.name) : nullptr;
}

// This rank's: of copies of a tied parameter those of the first, if no others have it.
std::int64_t ParameterShards::piece_bytes(TiedPages* tied) const {
  std::int64_t bytes = 0;
  std::set<const std::shared_ptr<Page>*> seen;
  for (std::size_t b = 0; b < layout_.buckets.size(); ++b) {
    const std::shared_ptr<Page>* const copies = tied_page(b, tied);
    if (copies != nullptr && (*copies != nullptr || !seen.insert(copies).second)) continue;
    bytes += layout_.buckets[b].piece * layout_.buckets[b].element_bytes;
  }
  return bytes;
}

void ParameterShards::add_page(std::size_t bucket, TiedPages* tied) {
  const partition::ShardBucket& layout = layout_.buckets[bucket];
  const stage::NamedParameter& first = parameters_[layout.parameters.front()];
  std::shared_ptr<Page>* const copies = tied_page(bucket, tied);
  is_shared_.push_back(copies != nullptr && *copies != nullptr);
  if (is_shared_.back()) {
    pages_.push_back(*copies);
    return pages_.back()->hold_copy(first);
  }
  const auto page = std::make_shared<Page>(group_, layout.piece,
                                           first.tensor.options().requires_grad(false), pieces_);
  for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
    page->hold(parameters_[layout.parameters[i]], layout.offsets[i]);
  }
  page->close();
  pages_.push_back(page);
  if (copies != nullptr) *copies = page;
}

void ParameterShards::gather() {
  std::deque<std::unique_ptr<comm::Transfer>> under_way;
  for (std::size_t b = 0; b < pages_.size(); ++b) {
    std::unique_ptr<comm::Transfer> transfer =
        is_shared_[b] ? nullptr : pages_[b]->gather_updates();
    if (!transfer) continue;
    under_way.push_back(std::move(transfer));
    if (under_way.size() <= kGathersUnderWay) continue;
    under_way.front()->wait();
    under_way.pop_front();
  }
  for (const auto& transfer : under_way) transfer->wait();
}

void ParameterShards::unshard() {
  if (is_unsharded_) return;
  is_unsharded_ = true;
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
  for (const auto& page : pages_) page->unpin();
  for (const auto& page : pages_) {
    if (!page->is_pinned()) page->drop();
  }
}

void ParameterShards::adopt(std::int32_t root) {
  PENSTOCK_CHECK(!pieces_ || is_unsharded_, "pages are away");
  for (std::size_t b = 0; b < pages_.size(); ++b) {
    if (!is_shared_[b]) pages_[b]->adopt(root);
  }
}

}  // namespace penstock::zero
