#include "penstock/runtime/comm/group_messages.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/text.h"
#include "penstock/runtime/comm/ordered_sum.h"

namespace penstock::comm {
namespace {

// Up to this many bytes come to a rank when tensors go whole.
constexpr std::size_t kBytesOfWhole = std::size_t{1} << 17;
constexpr std::int32_t kTagsOfTransfer = 4;  // Whole, first half, second half; one is left.

at::Tensor flat_of(const at::Tensor& tensor) { return tensor.detach().view(-1); }

}  // namespace

// A transfer of two halves: of a tensor that goes whole, there is only the first one.
class GroupMessages::Collective : public Transfer {
 public:
  // `first`: brings this rank's part, or the whole.
  Collective(GroupMessages& group, const Operation& operation, at::Tensor flat, std::int32_t tags,
             std::unique_ptr<Transfers> first)
      : group_(group),
        open_(group.open_),
        operation_(operation),
        flat_(std::move(flat)),
        tags_(tags),
        first_(std::move(first)) {
    open_->push_back(this);
  }
  ~Collective() override { std::erase(*open_, this); }
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  // Others may wait for an earlier one: what this rank has to say for that comes first.
  void wait() override {
    while (first_) open_->front()->advance();
    say_of_what([&] { second_->wait(); });
  }

 private:
  void advance() {
    say_of_what([&] { first_->wait(); });
    first_.reset();
    std::erase(*open_, this);
    second_ = group_.goes_whole(flat_) ? std::make_unique<Transfers>()
                                       : group_.share_parts(flat_, tags_ + 2);
  }

  template <class Wait>
  void say_of_what(const Wait& wait) const {
    try {
      wait();
    } catch (const CommError& error) {
      group_.rules_.interrupt.check();  // Another rank's failure.
      throw CommError(str(operation_.describe({}, flat_.nbytes()), ": ", error.message()),
                      error.notes(), error.exit_code());
    }
  }

  GroupMessages& group_;
  std::shared_ptr<std::vector<Collective*>> open_;
  const Operation& operation_;
  at::Tensor flat_;
  std::int32_t tags_;
  std::unique_ptr<Transfers> first_;
  std::unique_ptr<Transfer> second_;  // Once the first half is over.
};

GroupMessages::GroupMessages(std::vector<Link*> links, std::int32_t number,
                             const std::string& members, const WaitRules& rules)
    : links_(std::move(links)),
      here_(static_cast<std::size_t>(std::ranges::find(links_, nullptr) - links_.begin())),
      // The last tag of all is not a group's (announced_link.cpp).
      first_tag_(std::numeric_limits<std::int32_t>::max() - (number + 1) * kTagsOfGroup),
      all_reduce_{"all-reduce over", members},
      broadcast_{"broadcast over", members},
      rules_(rules) {
  PENSTOCK_CHECK(here_ < size() && number < kGroupsMax, members);
}

bool GroupMessages::goes_whole(const at::Tensor& flat) const {
  return flat.nbytes() * (size() - 1) <= kBytesOfWhole;
}

at::Tensor GroupMessages::part(const at::Tensor& flat, std::size_t place) const {
  const auto bound = [&](std::size_t of) {
    return flat.numel() * static_cast<std::int64_t>(of) / static_cast<std::int64_t>(size());
  };
  return flat.narrow(0, bound(place), bound(place + 1) - bound(place));
}

at::Tensor GroupMessages::first_of(const at::Tensor& flat, std::size_t place) const {
  return goes_whole(flat) ? flat : part(flat, place);
}

std::int32_t GroupMessages::next_tags() {
  begun_ = (begun_ + 1) % (kTagsOfGroup / kTagsOfTransfer);
  return first_tag_ + kTagsOfTransfer * begun_;
}

std::int32_t GroupMessages::tag_of_first(const at::Tensor& flat, std::int32_t tags) const {
  return goes_whole(flat) ? tags : tags + 1;
}

std::unique_ptr<Transfer> GroupMessages::share_parts(const at::Tensor& flat, std::int32_t tag) {
  auto transfers = std::make_unique<Transfers>();
  for_others(
      [&](std::size_t place) { transfers->add(links_[place]->receive(part(flat, place), tag)); });
  const at::Tensor mine = part(flat, here_);
  for_others([&](std::size_t place) { transfers->add(links_[place]->send(mine, tag)); });
  return transfers;
}

std::unique_ptr<Transfer> GroupMessages::all_reduce(const at::Tensor& tensor) {
  at::Tensor flat = flat_of(tensor);
  const std::int32_t tags = next_tags();
  const std::int32_t tag = tag_of_first(flat, tags);
  const at::Tensor mine = first_of(flat, here_);
  std::vector<at::Tensor> summands(size(), mine);
  for_others([&](std::size_t place) { summands[place] = at::empty_like(mine); });
  auto sum = std::make_unique<OrderedSum>(summands, mine);
  for_others([&](std::size_t place) { sum->add(links_[place]->receive(summands[place], tag)); });
  for_others([&](std::size_t place) { sum->add(links_[place]->send(first_of(flat, place), tag)); });
  return std::make_unique<Collective>(*this, all_reduce_, std::move(flat), tags, std::move(sum));
}

std::unique_ptr<Transfer> GroupMessages::broadcast(const at::Tensor& tensor, std::int32_t root) {
  at::Tensor flat = flat_of(tensor);
  const std::int32_t tags = next_tags();
  const std::int32_t tag = tag_of_first(flat, tags);
  const auto from = static_cast<std::size_t>(root);
  auto given = std::make_unique<Transfers>();
  if (here_ == from) {
    for_others(
        [&](std::size_t place) { given->add(links_[place]->send(first_of(flat, place), tag)); });
  } else {
    given->add(links_[from]->receive(first_of(flat, here_), tag));
  }
  return std::make_unique<Collective>(*this, broadcast_, std::move(flat), tags, std::move(given));
}

}  // namespace penstock::comm
