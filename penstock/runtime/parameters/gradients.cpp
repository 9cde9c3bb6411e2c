#include "penstock/runtime/parameters/gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "penstock/plan/partition/gradient_buckets.h"

namespace penstock::parameters {

GradientReducer::GradientReducer(std::vector<stage::NamedParameter> parameters,
                                 comm::ShardGroup& group, std::int64_t bucket_bytes,
                                 std::optional<at::ScalarType> sums, std::size_t under_way_max)
    : parameters_(std::move(parameters)),
      group_(group),
      sums_(parameters_, sums),
      under_way_max_(under_way_max) {
  if (group.size() == 1) return;
  fill_buckets(bucket_bytes);
  std::vector<std::vector<std::size_t>> of_buckets;
  for (const Bucket& bucket : buckets_) of_buckets.push_back(bucket.parameters);
  arrivals_.emplace(
      parameters_, std::move(of_buckets), [this](std::size_t parameter) { take(parameter); },
      [this](std::size_t bucket) { send(bucket); });
}

void GradientReducer::fill_buckets(std::int64_t bucket_bytes) {
  place_.resize(parameters_.size());
  absent_.resize(parameters_.size());
  std::vector<partition::GradientSize> sizes;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const at::ScalarType type = sums_.type(p);
    const auto element = static_cast<std::int64_t>(c10::elementSize(type));
    sizes.push_back({c10::toString(type), parameters_[p].tensor.numel() * element});
  }
  for (auto& parameters : partition::gradient_buckets(sizes, bucket_bytes)) {
    add_bucket(std::move(parameters));
  }
}

void GradientReducer::add_bucket(std::vector<std::size_t> parameters) {
  Bucket bucket;
  for (const std::size_t p : parameters) {
    place_[p] = {buckets_.size(), bucket.offsets.size()};
    bucket.offsets.push_back(bucket.size);
    bucket.size += parameters_[p].tensor.numel();
  }
  const std::int64_t row =
      (bucket.size + std::ssize(parameters) + group_.size() - 1) / group_.size();
  const std::size_t first = parameters.front();
  bucket.flat =
      at::zeros({row * group_.size()},
                parameters_[first].tensor.options().requires_grad(false).dtype(sums_.type(first)));
  bucket.tag = group_.reserve_tags(1);
  bucket.parameters = std::move(parameters);
  buckets_.push_back(std::move(bucket));
}

// Takes gradients as they come during the last backward; before that, adds them up.  Those that did
// not come go now, since other replicas may wait for them.
void GradientReducer::after_backward(std::int64_t) {
  if (!arrivals_ || !arrivals_->is_under_way()) return sums_.add();
  arrivals_->end();
}

void GradientReducer::before_last_backward(double divisor) {
  divisor_ = Divisor(divisor);
  if (!arrivals_) return;
  arrivals_->begin();
  std::fill(absent_.begin(), absent_.end(), false);
  for (Bucket& bucket : buckets_) {
    bucket.flat.narrow(0, bucket.size, std::ssize(bucket.parameters)).fill_(1);
  }
}

void GradientReducer::take(std::size_t parameter) {
  const at::NoGradGuard no_grad;
  Bucket& bucket = buckets_[place_[parameter].first];
  const std::size_t entry = place_[parameter].second;
  const at::Tensor& tensor = parameters_[parameter].tensor;
  const at::Tensor view =
      bucket.flat.narrow(0, bucket.offsets[entry], tensor.numel()).view(tensor.sizes());
  if (const at::Tensor sum = sums_.take(parameter); sum.defined()) {
    divisor_.put(view, sum);
  } else {
    view.zero_();
    absent_[parameter] = true;
    bucket.flat.narrow(0, bucket.size + static_cast<std::int64_t>(entry), 1).zero_();
  }
  tensor.mutable_grad() = view;
}

void GradientReducer::send(std::size_t bucket) {
  const at::NoGradGuard no_grad;
  Bucket& full = buckets_[bucket];
  if (bucket >= under_way_max_) buckets_[bucket - under_way_max_].sum->advance();
  full.sum = group_.all_reduce(full.flat.view({group_.size(), -1}), full.tag);
}

void GradientReducer::reduce(std::optional<Microbatch>) {
  if (arrivals_ && arrivals_->is_under_way()) arrivals_->end();
}

void GradientReducer::finish() {
  const at::NoGradGuard no_grad;
  if (!arrivals_) return hand_out_sums();
  for (Bucket& bucket : buckets_) {
    if (bucket.sum) bucket.sum->advance();
  }
  for (Bucket& bucket : buckets_) {
    if (!bucket.sum) continue;
    bucket.sum->wait();
    bucket.sum.reset();
    drop_absent_gradients(bucket);
  }
}

void GradientReducer::drop_sums() {
  sums_.drop();
  if (arrivals_) arrivals_->abandon();
  for (Bucket& bucket : buckets_) bucket.sum.reset();
}

void GradientReducer::hand_out_sums() {
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    at::Tensor sum = sums_.take(p);
    if (sum.defined()) divisor_.divide(sum);
    parameters_[p].tensor.mutable_grad() = std::move(sum);
  }
}

// Gives up gradients that no replica had, as without replicas: an optimizer step must not decay a
// parameter that nothing depends on.
void GradientReducer::drop_absent_gradients(const Bucket& bucket) {
  for (std::size_t entry = 0; entry < bucket.parameters.size(); ++entry) {
    const std::size_t parameter = bucket.parameters[entry];
    if (!absent_[parameter]) continue;
    const at::Tensor replicas = bucket.flat[bucket.size + static_cast<std::int64_t>(entry)];
    if (replicas.item<double>() == 0.0) {
      parameters_[parameter].tensor.mutable_grad().reset();
    }
  }
}

}  // namespace penstock::parameters
