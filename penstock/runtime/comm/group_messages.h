// The collectives of a group, as messages between every two of its ranks.
//
// World has one for each group.  What is summed is added in the order of the group's ranks, so the
// bits depend neither on the transport nor on what comes first.  Small tensors go whole from each
// rank to all.  Of larger ones each rank has a part: it gets all summands of that, and sends the
// sum to all.  Each of n ranks sends 2 (n - 1) / n of the tensor's bytes then.
// Thread safety: as the communicator's.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "penstock/runtime/comm/links.h"

namespace penstock::comm {

// How many groups may be between two ranks, and how many tags a group has for itself.  A
// communicator's callers have the tags below those of all groups.
constexpr std::int32_t kGroupsMax = 1 << 14;
constexpr std::int32_t kTagsOfGroup = 1 << 16;

class GroupMessages {
 public:
  // `links`: to the group's ranks, in their order, which outlive this; null for this rank's place.
  // `number`: below kGroupsMax, the same on all ranks of the group, and on each of them no other
  // group's.  `members`: "ranks 0, 2".
  GroupMessages(std::vector<Link*> links, std::int32_t number, const std::string& members,
                const WaitRules& rules);

  // Do what Communicator's do, with contiguous tensors in host memory.  The ranks begin their
  // transfers in one order.  Of a large tensor, the second half begins when it, or a later one, is
  // waited for.
  std::unique_ptr<Transfer> all_reduce(const at::Tensor& tensor);
  std::unique_ptr<Transfer> broadcast(const at::Tensor& tensor, std::int32_t root);

 private:
  class Collective;

  std::size_t size() const { return links_.size(); }
  bool goes_whole(const at::Tensor& flat) const;
  // The part of `flat` that belongs to a place of the group.
  at::Tensor part(const at::Tensor& flat, std::size_t place) const;
  // What goes to or from that place in a transfer's first half.
  at::Tensor first_of(const at::Tensor& flat, std::size_t place) const;
  // The first of kTagsOfTransfer tags that no transfer under way has.
  std::int32_t next_tags();
  // The tag of a transfer's first half.  What goes whole is not taken for another rank's part.
  std::int32_t tag_of_first(const at::Tensor& flat, std::int32_t tags) const;
  // Sends the part at this place to all, and receives theirs.
  std::unique_ptr<Transfer> share_parts(const at::Tensor& flat, std::int32_t tag);
  // Does `action` with every other place of the group, the next one first.
  template <class Action>
  void for_others(const Action& action) const {
    for (std::size_t i = 1; i < size(); ++i) action((here_ + i) % size());
  }

  std::vector<Link*> links_;
  std::size_t here_ = 0;
  std::int32_t first_tag_;
  std::int32_t begun_ = 0;  // Transfers, modulo how many have tags of their own.
  // Transfers whose first half is under way, in their order.  Shared with them: one may outlive
  // this.
  std::shared_ptr<std::vector<Collective*>> open_ = std::make_shared<std::vector<Collective*>>();
  Operation all_reduce_;
  Operation broadcast_;
  const WaitRules& rules_;
};

}  // namespace penstock::comm
