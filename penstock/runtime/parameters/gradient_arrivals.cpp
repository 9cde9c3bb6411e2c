#include "penstock/runtime/parameters/gradient_arrivals.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

namespace penstock::parameters {
namespace {

using torch::autograd::PostAccumulateGradHook;
using torch::autograd::impl::post_acc_grad_hooks;

// A tensor has room for one hook: what was there before is called first.
class ArrivalHook : public PostAccumulateGradHook {
 public:
  ArrivalHook(std::unique_ptr<PostAccumulateGradHook> before, std::function<void()> arrive)
      : before_(std::move(before)), arrive_(std::move(arrive)) {}
  void operator()(const torch::autograd::Variable& parameter) override {
    if (before_) (*before_)(parameter);
    arrive_();
  }
  bool is_alone() const { return before_ == nullptr; }
  std::unique_ptr<PostAccumulateGradHook> before() && { return std::move(before_); }

 private:
  std::unique_ptr<PostAccumulateGradHook> before_;
  std::function<void()> arrive_;
};

}  // namespace

bool only_notes_arrival(const PostAccumulateGradHook& hook) {
  const auto* ours = dynamic_cast<const ArrivalHook*>(&hook);
  return ours != nullptr && ours->is_alone();
}

GradientArrivals::GradientArrivals(std::vector<stage::NamedParameter> parameters,
                                   std::vector<std::vector<std::size_t>> buckets,
                                   std::function<void(std::size_t)> parameter,
                                   std::function<void(std::size_t)> bucket)
    : parameters_(std::move(parameters)),
      buckets_(std::move(buckets)),
      bucket_of_(parameters_.size()),
      on_parameter_(std::move(parameter)),
      on_bucket_(std::move(bucket)),
      arrived_(parameters_.size()),
      missing_(buckets_.size()) {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (const std::size_t p : buckets_[b]) bucket_of_[p] = b;
  }
  for (std::size_t p = 0; p < arrived_.size(); ++p) {
    std::unique_ptr<PostAccumulateGradHook>& hook = post_acc_grad_hooks(parameters_[p].tensor);
    hook = std::make_unique<ArrivalHook>(std::move(hook), [this, p] { arrive(p); });
  }
}

GradientArrivals::~GradientArrivals() {
  for (const auto& parameter : parameters_) {
    std::unique_ptr<PostAccumulateGradHook>& hook = post_acc_grad_hooks(parameter.tensor);
    if (auto* ours = dynamic_cast<ArrivalHook*>(hook.get())) hook = std::move(*ours).before();
  }
}

void GradientArrivals::begin() {
  is_under_way_ = true;
  next_bucket_ = 0;
  arrived_.assign(arrived_.size(), false);
  for (std::size_t b = 0; b < buckets_.size(); ++b) missing_[b] = buckets_[b].size();
}

void GradientArrivals::end() {
  for (std::size_t p = arrived_.size(); p-- > 0;) arrive(p);
  is_under_way_ = false;
}

void GradientArrivals::arrive(std::size_t parameter) {
  if (!is_under_way_ || arrived_[parameter]) return;
  arrived_[parameter] = true;
  on_parameter_(parameter);
  --missing_[bucket_of_[parameter]];
  while (next_bucket_ < buckets_.size() && missing_[next_bucket_] == 0) on_bucket_(next_bucket_++);
}

}  // namespace penstock::parameters
