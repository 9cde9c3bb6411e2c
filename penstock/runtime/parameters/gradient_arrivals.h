// Tells when the gradients of a step's last backward are final, parameter by parameter and bucket
// by bucket.
//
// What sums gradients over replicas while that backward still runs stands on it.  Parameters arrive
// in any order; buckets are complete in their own, which is the same on every rank.  Knows no
// messages.
#pragma once
#include <cstddef>
#include <functional>
#include <vector>

#include "penstock/runtime/stage/stage.h"

namespace torch::autograd {
struct PostAccumulateGradHook;
}

namespace penstock::parameters {

// Whether a parameter's hook is that of GradientArrivals, and of nobody else.
bool only_notes_arrival(const torch::autograd::PostAccumulateGradHook& hook);

class GradientArrivals {
 public:
  // `parameter` is called once a step for each parameter; grad() is then final, or undefined when
  // it got none on this rank.  `bucket` is called when all parameters of a bucket, and all buckets
  // before it, have arrived.  `buckets` has every one of `parameters` once.  A hook that somebody
  // has put on the accumulation of a parameter's gradient is called before.
  GradientArrivals(std::vector<stage::NamedParameter> parameters,
                   std::vector<std::vector<std::size_t>> buckets,
                   std::function<void(std::size_t)> parameter,
                   std::function<void(std::size_t)> bucket);
  ~GradientArrivals();
  GradientArrivals(const GradientArrivals&) = delete;
  GradientArrivals& operator=(const GradientArrivals&) = delete;

  // The next backward is the last of the step.
  void begin();
  bool is_under_way() const { return is_under_way_; }
  // Ends the backward: what has not come has no gradient here.
  void end();
  // Gives up: the backward has failed.
  void abandon() { is_under_way_ = false; }

 private:
  void arrive(std::size_t parameter);

  std::vector<stage::NamedParameter> parameters_;
  std::vector<std::vector<std::size_t>> buckets_;
  std::vector<std::size_t> bucket_of_;  // Bucket of each parameter.
  std::function<void(std::size_t)> on_parameter_;
  std::function<void(std::size_t)> on_bucket_;
  bool is_under_way_ = false;
  std::vector<bool> arrived_;         // True of parameters whose gradient has come.
  std::vector<std::size_t> missing_;  // Missing gradients of each bucket.
  std::size_t next_bucket_ = 0;
};

}  // namespace penstock::parameters
