#include "penstock/runtime/comm/shard_group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/runtime/comm/ordered_sum.h"

namespace penstock::comm {
namespace {

class ScatteredAndGathered : public GroupSum {
 public:
  ScatteredAndGathered(ShardGroup& group, const at::Tensor& rows, std::int32_t tag)
      : group_(group),
        rows_(rows),
        sum_(at::empty_like(rows[group.place()])),
        tag_(tag),
        scattered_(group.reduce_scatter(rows, sum_, tag)) {
    scattered_->begin();
  }
  void advance() override {
    if (gathered_) return;
    scattered_->wait();
    rows_[group_.place()].copy_(sum_);
    scattered_.reset();
    sum_.reset();
    gathered_ = group_.all_gather(rows_, tag_);
    gathered_->begin();
  }
  void wait() override {
    advance();
    gathered_->wait();
  }

 private:
  ShardGroup& group_;
  at::Tensor rows_;
  at::Tensor sum_;
  std::int32_t tag_;
  std::unique_ptr<Transfer> scattered_;
  std::unique_ptr<Transfer> gathered_;
};

}  // namespace

ShardGroup::ShardGroup(Communicator& communicator, const std::vector<Rank>& ranks)
    : communicator_(communicator), ranks_(ranks) {
  const auto self = std::ranges::find(ranks_, communicator.rank());
  PENSTOCK_CHECK(self != ranks_.end(), "rank ", communicator.rank(), " is not in its group");
  place_ = static_cast<std::int32_t>(self - ranks_.begin());
  communicator.link(ranks_, Peers::Group);
  group_ = communicator.make_group(ranks_);
}

std::int32_t ShardGroup::reserve_tags(std::int32_t count) {
  return std::exchange(next_tag_, next_tag_ + count);
}

std::unique_ptr<Transfer> ShardGroup::reduce_scatter(const at::Tensor& rows, const at::Tensor& sum,
                                                     std::int32_t tag) {
  PENSTOCK_CHECK(rows.is_contiguous() && rows.size(0) == size(), "tag ", tag);
  std::vector<at::Tensor> of_ranks;
  for (std::int32_t r = 0; r < size(); ++r) {
    of_ranks.push_back(r == place_ ? rows[r] : at::empty_like(rows[r]));
  }
  auto scattered = std::make_unique<OrderedSum>(of_ranks, sum);
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (ranks_[r] == communicator_.rank()) continue;
    scattered->add(communicator_.receive(of_ranks[r], ranks_[r], tag));
  }
  // Every rank begins with the one behind it, so that no rank gets all messages at once.
  for (std::int32_t i = 1; i < size(); ++i) {
    const std::int32_t r = (place_ + i) % size();
    scattered->add(communicator_.send(rows[r], ranks_[static_cast<std::size_t>(r)], tag));
  }
  return scattered;
}

std::unique_ptr<Transfer> ShardGroup::all_gather(const at::Tensor& rows, std::int32_t tag) {
  PENSTOCK_CHECK(rows.is_contiguous() && rows.size(0) == size(), "tag ", tag);
  auto transfers = std::make_unique<Transfers>();
  for (std::int32_t i = 1; i < size(); ++i) {
    const std::int32_t r = (place_ + size() - i) % size();
    transfers->add(communicator_.receive(rows[r], ranks_[static_cast<std::size_t>(r)], tag));
  }
  for (std::int32_t i = 1; i < size(); ++i) {
    const std::int32_t r = (place_ + i) % size();
    transfers->add(communicator_.send(rows[place_], ranks_[static_cast<std::size_t>(r)], tag));
  }
  return transfers;
}

std::unique_ptr<Transfer> ShardGroup::broadcast(const at::Tensor& tensor, std::int32_t root) {
  return communicator_.broadcast(tensor, group_, root);
}

std::unique_ptr<GroupSum> ShardGroup::all_reduce(const at::Tensor& rows, std::int32_t tag) {
  return std::make_unique<ScatteredAndGathered>(*this, rows, tag);
}

}  // namespace penstock::comm
