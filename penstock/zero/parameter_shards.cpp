#include "penstock/zero/parameter_shards.h"

#include <c10/core/ScalarType.h>

#include <deque>
#include <memory>
#include <set>
#include <utility>

#include "penstock/core/check.h"

namespace penstock::zero {
namespace {

// What is sent and not yet read takes memory, too.
constexpr std::size_t kGathersUnderWay = 4;

}  // namespace

ParameterShards::ParameterShards(comm::ShardGroup& group, std::int64_t bucket_bytes,
                                 const Kept& keeps, TiedPages* tied)
    : group_(group), tied_(tied), growing_(group.size(), bucket_bytes) {
  if (keeps.what == Keeps::Piece) pieces_ = std::make_shared<PieceMemory>(keeps.pieces);
}

ParameterShards::ParameterShards(std::vector<stage::NamedParameter> parameters,
                                 comm::ShardGroup& group, std::int64_t bucket_bytes,
                                 const Kept& keeps, TiedPages* tied)
    : ParameterShards(group, bucket_bytes, keeps, tied) {
  for (stage::NamedParameter& parameter : parameters) add(std::move(parameter));
  close();
}

void ParameterShards::add(stage::NamedParameter parameter, Keeps keeps) {
  const at::Tensor& tensor = parameter.tensor;
  partition::ShardedParameter size{
      .name = parameter.name,
      .type = c10::toString(tensor.scalar_type()),
      .element_bytes = static_cast<std::int64_t>(tensor.element_size()),
      .elements = tensor.numel(),
      .is_trainable = tensor.requires_grad(),
      .stays = pieces_ != nullptr && keeps == Keeps::Whole,
      .is_alone = tied_ != nullptr && tied_->contains(parameter.name)};
  if (size.is_trainable) trained_.push_back(parameters_.size());
  parameters_.push_back(std::move(parameter));
  if (const auto full = growing_.add(std::move(size))) make_page(*full);
}

void ParameterShards::close() {
  for (const std::size_t bucket : growing_.close()) make_page(bucket);
  cuts_ = layout().slices_by_parameter();
  slice_of_.resize(parameters_.size());
  for (const partition::Slice& slice : layout().slices(group_.place())) {
    slice_of_[slice.parameter] = slices_.size();
    slices_.push_back(
        {.place = slice,
         .values = pages_[slice.bucket]->piece().narrow(0, slice.offset, slice.count)});
  }
}

// A tied parameter's is that of its first copy.
void ParameterShards::make_page(std::size_t b) {
  const partition::ShardBucket& bucket = layout().buckets[b];
  pages_.resize(layout().buckets.size());
  is_shared_.resize(pages_.size());
  page_of_.resize(parameters_.size());
  const std::size_t first = bucket.parameters.front();
  std::shared_ptr<Page>* const of_copies =
      layout().parameters[first].is_alone ? &tied_->at(parameters_[first].name) : nullptr;
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

std::shared_ptr<Page> ParameterShards::new_page(const partition::ShardBucket& bucket) const {
  const at::Tensor& first = parameters_[bucket.parameters.front()].tensor;
  const auto page = std::make_shared<Page>(
      group_, bucket.piece, first.options().requires_grad(false), bucket.stays ? nullptr : pieces_);
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
    under_way.push_back(std::move(transfer));
    if (under_way.size() > kGathersUnderWay) await_first();
  }
  while (!under_way.empty()) await_first();
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
