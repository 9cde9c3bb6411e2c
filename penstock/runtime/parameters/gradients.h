// Sums a stage's weight gradients over the data-parallel ranks, in buckets, while the stage's last
// backward still runs.
//
// The executor tells it before that backward, be it a B or a W; from then on it hears of each
// gradient as it becomes final.  A REDUCE_GRAD means nothing to it, unless a last backward did not
// end by after_backward(): gradients are summed once a step.
// Buckets leave in one fixed order, the same on every rank, and replicas are added in the order of
// their ranks.  With one data rank there are no buckets.
// At most partition::kSumsUnderWay buckets are summed at once: before the next one leaves, the
// oldest sum is waited for, and its rows begin to go to the replicas.  So memory holds the rows of
// so many buckets that came from other replicas.  sharded_gradients.h says why nobody waits in a
// circle.
// Invariant: after finish(), every parameter's grad() is of the type of the sums, and has the same
// bits on all data ranks.  It is a view of its bucket there.  A parameter that got no gradient on
// any of them has none.
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
#include "penstock/runtime/stage/stage.h"

namespace penstock::parameters {

using partition::kBucketBytes;

class GradientReducer : public execute::StageHooks {
 public:
  // Sums gradients of `parameters`, alike on all ranks of `group`, which outlives the reducer.  A
  // parameter larger than `bucket_bytes` has a bucket to itself.  Gradients of short parameters are
  // added up in `sums` (accumulated_gradients.h); absent: in the parameters' type.
  GradientReducer(std::vector<stage::NamedParameter> parameters, comm::ShardGroup& group,
                  std::int64_t bucket_bytes = kBucketBytes, std::optional<at::ScalarType> sums = {},
                  std::size_t under_way_max = partition::kSumsUnderWay);

  void after_backward(std::int64_t microbatch) override;
  void before_last_backward(double divisor) override;
  // Gradients that did not come on this rank count as zero.
  void reduce(std::optional<Microbatch> microbatch) override;
  // Waits for all buckets.
  void finish() override;
  void drop_sums() override;

 private:
  struct Bucket {
    // All gradients, then a flag for each, whether it is there; padded to rows of equal length.
    at::Tensor flat;
    std::vector<std::size_t> parameters;
    std::vector<std::int64_t> offsets;
    std::int64_t size = 0;  // Elements of all gradients together.
    std::int32_t tag = 0;
    std::unique_ptr<comm::GroupSum> sum;
  };
  void fill_buckets(std::int64_t bucket_bytes);
  void add_bucket(std::vector<std::size_t> parameters);
  void take(std::size_t parameter);
  void send(std::size_t bucket);
  void hand_out_sums();
  void drop_absent_gradients(const Bucket& bucket);

  std::vector<stage::NamedParameter> parameters_;
  comm::ShardGroup& group_;
  AccumulatedGradients sums_;
  std::size_t under_way_max_;
  // Buckets in reverse parameter order: about the order of the backward.
  std::vector<Bucket> buckets_;
  std::vector<std::pair<std::size_t, std::size_t>> place_;  // Bucket and entry of each parameter.
  std::vector<bool> absent_;                  // Parameters for which this rank had no gradient.
  Divisor divisor_;                           // Divides this step's sums.
  std::optional<GradientArrivals> arrivals_;  // Absent with one data rank.
};

}  // namespace penstock::parameters
