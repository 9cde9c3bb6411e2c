// Sums and shards over a group of ranks, as one message between every two of them.
//
// parameters/ sums, scatters and gathers with it.  What is summed is added in the
// order of the group's ranks, whatever comes first.  So the bits are the same however the summands
// are cut into messages, and whether all ranks want the sum or each a piece.  (Gloo's ring adds in
// an order that depends on the place in the tensor, and its reduce-scatter in another.) bf16 and
// fp16 are added in float, and the sum is rounded once.
// Shapes: `rows` is [ranks, n], contiguous; row r belongs to the group's r-th rank.
// Thread safety: as the communicator's.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "penstock/comm/communicator.h"

namespace penstock::comm {

// A sum for all ranks, under way in two halves.
class GroupSum : public Transfer {
 public:
  // Ends the first half and begins the second; wait() does it if nobody has.
  virtual void advance() {}
};

class ShardGroup {
 public:
  // Collective over `ranks`, which are the same, and in the same order, on each of them: connects
  // them.  The communicator outlives it.
  ShardGroup(Communicator& communicator, const std::vector<Rank>& ranks);

  const std::vector<Rank>& ranks() const { return ranks_; }
  std::int32_t size() const { return static_cast<std::int32_t>(ranks_.size()); }
  // This rank's place in the group.
  std::int32_t place() const { return place_; }
  Group group() const { return group_; }
  // The age of its communicator.
  std::int64_t age() const { return communicator_.age(); }

  // Names for `count` kinds of messages.  REQUIRES: called in the same order on every rank.
  std::int32_t reserve_tags(std::int32_t count);

  // wait() leaves in `sum`, [n], the sum of all ranks' rows for this one.
  std::unique_ptr<Transfer> reduce_scatter(const at::Tensor& rows, const at::Tensor& sum,
                                           std::int32_t tag);
  // wait() leaves every rank's own row in its place.
  std::unique_ptr<Transfer> all_gather(const at::Tensor& rows, std::int32_t tag);
  // wait() leaves in `tensor` what it is on the group's `root`-th rank.
  std::unique_ptr<Transfer> broadcast(const at::Tensor& tensor, std::int32_t root);
  // wait() leaves the sum over all ranks in `rows`.
  std::unique_ptr<GroupSum> all_reduce(const at::Tensor& rows, std::int32_t tag);

 private:
  Communicator& communicator_;
  std::vector<Rank> ranks_;
  std::int32_t place_ = 0;
  Group group_;
  std::int32_t next_tag_ = 0;
};

}  // namespace penstock::comm
