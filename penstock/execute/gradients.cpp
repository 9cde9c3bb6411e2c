#include "penstock/execute/gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "penstock/core/check.h"

namespace penstock::execute {

GradientReducer::GradientReducer(stage::Stage& stage, comm::ShardGroup& group,
                                 std::int64_t bucket_bytes, std::optional<at::ScalarType> sums)
    : stage_(stage), group_(group), sums_(stage.parameters(), sums) {
  if (group.size() == 1) return;
  fill_buckets(bucket_bytes);
  std::vector<std::vector<std::size_t>> parameters;
  for (const Bucket& bucket : buckets_) parameters.push_back(bucket.parameters);
  arrivals_.emplace(
      stage.parameters(), std::move(parameters), [this](std::size_t parameter) { take(parameter); },
      [this](std::size_t bucket) { send(bucket); });
}

void GradientReducer::fill_buckets(std::int64_t bucket_bytes) {
  const auto& parameters = stage_.parameters();
  place_.resize(parameters.size());
  absent_.resize(parameters.size());
  std::int64_t room = 0;
  for (std::size_t p = parameters.size(); p-- > 0;) {
    const at::Tensor& tensor = parameters[p].tensor;
    const auto bytes = tensor.numel() * static_cast<std::int64_t>(c10::elementSize(sums_.type(p)));
    const bool same_type =
        !buckets_.empty() && sums_.type(buckets_.back().parameters.back()) == sums_.type(p);
    if (!same_type || bytes > room) {
      buckets_.emplace_back();
      room = bucket_bytes;
    }
    Bucket& bucket = buckets_.back();
    place_[p] = {buckets_.size() - 1, bucket.parameters.size()};
    bucket.parameters.push_back(p);
    bucket.offsets.push_back(bucket.size);
    bucket.size += tensor.numel();
    room -= bytes;
  }
  for (Bucket& bucket : buckets_) {
    const at::Tensor& like = parameters[bucket.parameters.front()].tensor;
    const std::int64_t row =
        (bucket.size + std::ssize(bucket.parameters) + group_.size() - 1) / group_.size();
    bucket.flat =
        at::zeros({row * group_.size()},
                  like.options().requires_grad(false).dtype(sums_.type(bucket.parameters.front())));
    bucket.tag = group_.reserve_tags(1);
  }
}

// During the last one, gradients are taken as they come.
void GradientReducer::after_backward(std::int64_t) {
  if (!arrivals_ || !arrivals_->is_under_way()) sums_.add();
}

void GradientReducer::before_last_backward() {
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
  const at::Tensor& tensor = stage_.parameters()[parameter].tensor;
  const at::Tensor view =
      bucket.flat.narrow(0, bucket.offsets[entry], tensor.numel()).view(tensor.sizes());
  if (const at::Tensor sum = sums_.take(parameter); sum.defined()) {
    view.copy_(sum);
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
  full.sum = group_.all_reduce(full.flat.view({group_.size(), -1}), full.tag);
}

void GradientReducer::reduce(std::optional<Microbatch> microbatch) {
  if (!arrivals_) return;
  if (!arrivals_->is_under_way() && microbatch) return;  // Not the first behind the last W.
  PENSTOCK_CHECK(arrivals_->is_under_way(), "stage ", stage_.id());
  arrivals_->end();
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

void GradientReducer::hand_out_sums() {
  const auto& parameters = stage_.parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    at::Tensor sum = sums_.take(p);
    parameters[p].tensor.mutable_grad() = std::move(sum);
  }
}

// As without replicas: an optimizer step must not decay a parameter that nothing depends on.
void GradientReducer::drop_absent_gradients(const Bucket& bucket) {
  for (std::size_t entry = 0; entry < bucket.parameters.size(); ++entry) {
    const std::size_t parameter = bucket.parameters[entry];
    if (!absent_[parameter]) continue;
    const at::Tensor replicas = bucket.flat[bucket.size + static_cast<std::int64_t>(entry)];
    if (replicas.item<double>() == 0.0) {
      stage_.parameters()[parameter].tensor.mutable_grad().reset();
    }
  }
}

}  // namespace penstock::execute
