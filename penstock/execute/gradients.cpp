#include "penstock/execute/gradients.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include "penstock/core/check.h"

namespace penstock::execute {
namespace {

class ReadyHook : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit ReadyHook(std::function<void()> ready) : ready_(std::move(ready)) {}
  void operator()(const torch::autograd::Variable&) override { ready_(); }

 private:
  std::function<void()> ready_;
};

}  // namespace

GradientReducer::GradientReducer(stage::Stage& stage, comm::Communicator& communicator,
                                 comm::Group data_group, std::int32_t data_size,
                                 std::int64_t bucket_bytes)
    : stage_(stage), communicator_(communicator), group_(data_group) {
  if (data_size == 1) return;
  const auto& parameters = stage.parameters();
  place_.resize(parameters.size());
  arrived_.resize(parameters.size());
  absent_.resize(parameters.size());
  std::int64_t room = 0;
  for (std::size_t p = parameters.size(); p-- > 0;) {
    const at::Tensor& tensor = parameters[p].tensor;
    const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
    const bool same_type =
        !buckets_.empty() &&
        parameters[buckets_.back().parameters.back()].tensor.scalar_type() == tensor.scalar_type();
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
    bucket.flat = at::empty({bucket.size + std::ssize(bucket.parameters)},
                            like.options().requires_grad(false));
  }
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    torch::autograd::impl::set_post_acc_grad_hooks(
        parameters[p].tensor, std::make_unique<ReadyHook>([this, p] { ready(p); }));
  }
}

GradientReducer::~GradientReducer() {
  if (buckets_.empty()) return;
  for (const auto& parameter : stage_.parameters()) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, nullptr);
  }
}

void GradientReducer::before_last_backward() {
  armed_ = true;
  next_bucket_ = 0;
  std::fill(arrived_.begin(), arrived_.end(), false);
  std::fill(absent_.begin(), absent_.end(), false);
  for (Bucket& bucket : buckets_) {
    bucket.missing = bucket.parameters.size();
    bucket.flat.narrow(0, bucket.size, std::ssize(bucket.parameters)).fill_(1);
  }
}

void GradientReducer::ready(std::size_t parameter) {
  if (!armed_ || arrived_[parameter]) return;
  arrived_[parameter] = true;
  const torch::NoGradGuard no_grad;
  Bucket& bucket = buckets_[place_[parameter].first];
  const std::size_t entry = place_[parameter].second;
  const at::Tensor& tensor = stage_.parameters()[parameter].tensor;
  const at::Tensor view =
      bucket.flat.narrow(0, bucket.offsets[entry], tensor.numel()).view(tensor.sizes());
  if (tensor.grad().defined()) {
    view.copy_(tensor.grad());
  } else {
    view.zero_();
    absent_[parameter] = true;
    bucket.flat.narrow(0, bucket.size + static_cast<std::int64_t>(entry), 1).zero_();
  }
  tensor.mutable_grad() = view;
  --bucket.missing;
  send_full_buckets();
}

void GradientReducer::send_full_buckets() {
  for (; next_bucket_ < buckets_.size() && buckets_[next_bucket_].missing == 0; ++next_bucket_) {
    Bucket& bucket = buckets_[next_bucket_];
    bucket.transfer = communicator_.all_reduce(bucket.flat, group_);
  }
}

void GradientReducer::reduce(std::optional<Microbatch> microbatch) {
  if (!armed_ && microbatch) return;  // Not the last one, or not the first behind the last W.
  PENSTOCK_CHECK(armed_, "stage ", stage_.id());
  for (std::size_t p = stage_.parameters().size(); p-- > 0 && !buckets_.empty();) ready(p);
  armed_ = false;
}

void GradientReducer::finish() {
  for (Bucket& bucket : buckets_) {
    if (!bucket.transfer) continue;
    bucket.transfer->wait();
    bucket.transfer.reset();
    drop_absent_gradients(bucket);
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
