#include "penstock/runtime/comm/shard_group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <utility>

#include "penstock/core/check.h"

namespace penstock::comm {
namespace {

class Transfers : public Transfer {
 public:
  void add(std::unique_ptr<Transfer> transfer) { transfers_.push_back(std::move(transfer)); }
  void wait() override {
    for (const auto& transfer : transfers_) transfer->wait();
    transfers_.clear();
  }
  bool is_over() override {
    return std::ranges::all_of(transfers_, [](const auto& each) { return each->is_over(); });
  }

 private:
  std::vector<std::unique_ptr<Transfer>> transfers_;
};

class Scattered : public Transfers {
 public:
  // `of_ranks`: what each rank adds, in their order.
  Scattered(std::vector<at::Tensor> of_ranks, at::Tensor sum)
      : of_ranks_(std::move(of_ranks)), sum_(std::move(sum)) {}
  void wait() override {
    if (of_ranks_.empty()) return;
    Transfers::wait();
    const bool is_short = c10::isReducedFloatingType(sum_.scalar_type());
    const at::Tensor sum = is_short ? at::empty_like(sum_, at::kFloat) : sum_;
    sum.copy_(of_ranks_.front());
    for (std::size_t i = 1; i < of_ranks_.size(); ++i) sum.add_(of_ranks_[i]);
    if (is_short) sum_.copy_(sum);
    of_ranks_.clear();
  }

 private:
  std::vector<at::Tensor> of_ranks_;
  at::Tensor sum_;
};

class ScatteredAndGathered : public GroupSum {
 public:
  ScatteredAndGathered(ShardGroup& group, const at::Tensor& rows, std::int32_t tag)
      : group_(group),
        rows_(rows),
        sum_(at::empty_like(rows[group.place()])),
        tag_(tag),
        scattered_(group.reduce_scatter(rows, sum_, tag)) {}
  void advance() override {
    if (gathered_) return;
    scattered_->wait();
    rows_[group_.place()].copy_(sum_);
    gathered_ = group_.all_gather(rows_, tag_);
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
  communicator.link(ranks_);
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
  auto scattered = std::make_unique<Scattered>(of_ranks, sum);
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
