#include "penstock/runtime/parameters/sharded_gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "penstock/plan/partition/gradient_buckets.h"
#include "penstock/runtime/offload/system_memory.h"

namespace penstock::parameters {

ShardedGradients::ShardedGradients(ParameterShards& shards, std::optional<at::ScalarType> sums,
                                   std::size_t under_way_max)
    : shards_(shards), sums_(shards.parameters(), sums), under_way_max_(under_way_max) {
  const partition::Ownership& ownership = shards.ownership();
  place_.resize(ownership.parameters.size());
  absent_.resize(ownership.parameters.size());
  std::vector<stage::NamedParameter> trained;
  std::vector<std::size_t> arrival(ownership.parameters.size());  // Number among those.
  for (const std::size_t p : shards.trained()) {
    arrival[p] = trained.size();
    trained.push_back(shards.parameters()[p]);
  }
  std::vector<std::vector<std::size_t>> arrivals;
  for (std::size_t b = ownership.buckets.size(); b-- > 0;) {
    if (!ownership.buckets[b].is_trainable) continue;
    const std::vector<std::size_t>& parameters = ownership.buckets[b].parameters;
    arrivals.emplace_back();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      place_[parameters[i]] = {buckets_.size(), i};
      arrivals.back().push_back(arrival[parameters[i]]);
    }
    Bucket& bucket = buckets_.emplace_back();
    bucket.index = b;
    bucket.tag = shards.group().reserve_tags(1);
  }
  arrivals_.emplace(
      std::move(trained), std::move(arrivals),
      [this](std::size_t arrived) { take(shards_.trained()[arrived]); },
      [this](std::size_t bucket) { send(bucket); });
}

// Takes gradients as they come, during the last backward.  Those that did not come go now, since
// other replicas may wait for them.
void ShardedGradients::after_backward(std::int64_t) {
  if (!arrivals_->is_under_way()) return sums_.add();
  arrivals_->end();
}

void ShardedGradients::before_last_backward(double divisor) {
  divisor_ = Divisor(divisor);
  arrivals_->begin();
  std::fill(absent_.begin(), absent_.end(), false);
}

at::Tensor ShardedGradients::flag(const Bucket& bucket, std::size_t parameter) const {
  const std::int64_t piece = shards_.ownership().buckets[bucket.index].piece;
  return bucket.rows.narrow(1, piece + static_cast<std::int64_t>(place_[parameter].second), 1);
}

void ShardedGradients::take(std::size_t parameter) {
  const at::NoGradGuard no_grad;
  Bucket& bucket = buckets_[place_[parameter].first];
  const partition::Bucket& owned = shards_.ownership().buckets[bucket.index];
  const at::Tensor& tensor = shards_.parameters()[parameter].tensor;
  if (!bucket.rows.defined()) {
    bucket.rows = offload::zeros_of_system(
        {shards_.group().size(), owned.piece + std::ssize(owned.parameters)},
        tensor.options().requires_grad(false).dtype(sums_.type(parameter)));
  }
  const at::Tensor sum = sums_.take(parameter);
  absent_[parameter] = !sum.defined();
  flag(bucket, parameter).fill_(absent_[parameter] ? 0 : 1);
  const at::Tensor gradient = absent_[parameter] ? sum : sum.flatten();
  for (const auto& [rank, slice] : shards_.cuts_of(parameter)) {
    const at::Tensor place = bucket.rows[rank].narrow(0, slice.offset, slice.count);
    if (gradient.defined()) {
      divisor_.put(place, gradient.narrow(0, slice.first, slice.count));
    } else {
      place.zero_();
    }
  }
}

void ShardedGradients::send(std::size_t bucket) {
  const at::NoGradGuard no_grad;
  Bucket& full = buckets_[bucket];
  before_sum(*shards_.pages()[full.index]);
  if (bucket >= under_way_max_) complete(buckets_[bucket - under_way_max_]);
  if (!full.sum.defined() || full.sum.device() != full.rows.device())
    full.sum = at::empty({full.rows.size(1)}, full.rows.options());
  full.transfer = shards_.group().reduce_scatter(full.rows, full.sum, full.tag);
  full.transfer->begin();
}

void ShardedGradients::complete(Bucket& bucket) {
  if (!bucket.transfer) return;
  bucket.transfer->wait();
  bucket.transfer.reset();
  const bool is_released =
      shards_.ownership().rules.summed_bucket() == partition::SummedBucket::Released;
  if (is_released) bucket.rows.reset();
  bucket.sum = bucket.sum.to(shards_.pages()[bucket.index]->piece().device());
  const std::int64_t piece = shards_.ownership().buckets[bucket.index].piece;
  for (const ShardSlice& slice : shards_.slices()) {
    if (slice.place.bucket != bucket.index) continue;
    const std::size_t parameter = slice.place.parameter;
    const auto entry = static_cast<std::int64_t>(place_[parameter].second);
    const bool is_there = !absent_[parameter] || bucket.sum[piece + entry].item<double>() != 0.0;
    slice.values.mutable_grad() =
        is_there ? bucket.sum.narrow(0, slice.place.offset, slice.place.count) : at::Tensor();
  }
}

void ShardedGradients::drop_sums() {
  sums_.drop();
  arrivals_->abandon();
  for (Bucket& bucket : buckets_) bucket.transfer.reset();
}

void ShardedGradients::reduce(std::optional<Microbatch>) {
  if (arrivals_->is_under_way()) arrivals_->end();
}

void ShardedGradients::finish() {
  const at::NoGradGuard no_grad;
  for (Bucket& bucket : buckets_) complete(bucket);
}

}  // namespace penstock::parameters
