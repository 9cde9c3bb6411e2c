// A stage's trainable parameters over the ranks of its data group: whole on each, each element
// updated by one.
//
// The Trainer makes one per stage for ZeRO; the optimizer steps on slices(), gather() then brings
// what the other ranks have updated.  Knows no schedule and no optimizer.
// Invariants: 1. Parameters are views of flat buckets (partition/shards.h), a slice is a view of
// its parameter, and no element is copied to update it.  2. After gather(), parameters have the
// same bits on every rank.
// A parameter that an earlier stage of this rank, or an earlier layer, already has (nn/model.h) is
// the same memory, in the layout of both, with a bucket of its own in each.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "penstock/comm/shard_group.h"
#include "penstock/partition/shards.h"
#include "penstock/stage/stage.h"

namespace penstock::zero {

// The flat buckets of tied parameters on this rank, by name.
using TiedBuckets = std::map<std::string, at::Tensor>;

// A slice of a parameter on this rank.
struct ShardSlice {
  partition::Slice place;
  at::Tensor values;  // Flat.  Its grad() is that of the slice, or undefined.
};

class StageShards {
 public:
  // Collective over `group`, which, like `stage`, outlives it.  `tied` learns this stage's.
  StageShards(stage::Stage& stage, comm::ShardGroup& group, std::int64_t bucket_bytes,
              TiedBuckets& tied);

  const partition::ShardLayout& layout() const { return layout_; }
  // This rank's, in the layout's order.
  const std::vector<ShardSlice>& slices() const { return slices_; }
  comm::ShardGroup& group() const { return group_; }

  void gather();

 private:
  struct Bucket {
    at::Tensor flat;         // [ranks, piece]
    bool is_shared = false;  // With an earlier bucket, which is the one that is gathered.
    std::int32_t tag = 0;
  };
  void add_bucket(std::size_t bucket, TiedBuckets& tied);

  stage::Stage& stage_;
  comm::ShardGroup& group_;
  partition::ShardLayout layout_;
  std::vector<Bucket> buckets_;
  std::vector<ShardSlice> slices_;
};

}  // namespace penstock::zero
