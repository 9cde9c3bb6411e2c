// Gradients of sharded parameters, summed over the replicas and left in shards: each rank gets the
// sums of its slices alone.
//
// Stands in for the GradientReducer under ZeRO.  Buckets leave while the last backward still runs,
// all of them before it is over; a parameter's own gradient is given up as it goes into its bucket.
// At most partition::kSumsUnderWay buckets are under way: before the next one leaves, the oldest is
// waited for.  No replicas wait for each other in a circle then: they send buckets in one order,
// and need nothing else from each other within a backward, or, with a pager, compare what it is.
// Ranks that pass microbatches to each other's replicas do: they have no such limit.
// A REDUCE_GRAD means nothing to it, unless a last backward did not end by after_backward().
// Invariants: 1. After finish(), grad() of every slice (parameter_shards.h) is the sum over the
// replicas, in the order of their ranks, or undefined if no replica has a gradient; parameters have
// none.  2. The same bits as the GradientReducer's.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "penstock/plan/partition/gradient_buckets.h"
#include "penstock/runtime/comm/shard_group.h"
#include "penstock/runtime/execute/stage_hooks.h"
#include "penstock/runtime/parameters/accumulated_gradients.h"
#include "penstock/runtime/parameters/divided.h"
#include "penstock/runtime/parameters/gradient_arrivals.h"
#include "penstock/runtime/parameters/parameter_shards.h"

namespace penstock::parameters {

class ShardedGradients : public execute::StageHooks {
 public:
  // `shards` outlives it.  Gradients of short parameters are added up, and slices have them, in
  // `sums` (accumulated_gradients.h); absent: in the parameters' type.
  explicit ShardedGradients(ParameterShards& shards, std::optional<at::ScalarType> sums = {},
                            std::size_t under_way_max = partition::kSumsUnderWay);

  void after_backward(std::int64_t microbatch) override;
  void before_last_backward(double divisor) override;
  // Gradients that did not come on this rank count as zero.
  void reduce(std::optional<Microbatch> microbatch) override;
  // Waits for all buckets.
  void finish() override;
  void drop_sums() override;

 protected:
  // The gradients of this page's parameters are about to leave.
  virtual void before_sum(const Page& page) { (void)page; }
  ParameterShards& shards() { return shards_; }

 private:
  struct Bucket {
    std::size_t index = 0;  // Number in the Ownership.
    at::Tensor rows;  // [ranks, piece + parameters]: each rank's piece, then a flag a parameter.
    at::Tensor sum;   // This rank's row of all replicas, where its slices are.
    std::int32_t tag = 0;
    std::unique_ptr<comm::Transfer> transfer;
  };
  void take(std::size_t parameter);
  void send(std::size_t bucket);
  void complete(Bucket& bucket);
  at::Tensor flag(const Bucket& bucket, std::size_t parameter) const;

  ParameterShards& shards_;
  AccumulatedGradients sums_;
  std::size_t under_way_max_;
  // Buckets with trained parameters, in the reverse of the Ownership's order, which is about that
  // of the backward.
  std::vector<Bucket> buckets_;
  std::vector<std::pair<std::size_t, std::size_t>> place_;  // Bucket and entry, by parameter.
  std::vector<bool> absent_;                                // This rank had no gradient.
  Divisor divisor_;                                         // Divides this step's sums.
  std::optional<GradientArrivals> arrivals_;
};

}  // namespace penstock::parameters
