// Hooks that have a stage's gradients summed over the replicas as soon as they are final: while its
// last backward runs, or, where that may run another one within it, when it is over.
//
// Around what sums (gradients.h, sharded_gradients.h), for stages whose graphs somebody else
// made.  Needs no REDUCE_GRAD: what a program has of it means nothing.  Knows no graphs.
#pragma once
#include <functional>
#include <utility>

#include "penstock/runtime/execute/stage_hooks.h"

namespace penstock::parameters {

class SumsWhenFinal : public execute::StageHooks {
 public:
  // `sums` outlives it.  `may_nest` is asked before the last backward whether another one may run
  // within it, which adds to gradients that seemed final.  Absent: none does.
  explicit SumsWhenFinal(execute::StageHooks& sums, std::function<bool()> may_nest = {})
      : sums_(sums), may_nest_(std::move(may_nest)) {}

  void unshard() override { sums_.unshard(); }
  void reshard() override { sums_.reshard(); }
  void before_compute() override { sums_.before_compute(); }
  void after_compute() override { sums_.after_compute(); }
  bool is_weight(const at::Tensor& value) const override { return sums_.is_weight(value); }
  void after_backward_input(std::int64_t microbatch) override {
    sums_.after_backward_input(microbatch);
  }

  void before_last_backward(double divisor) override {
    divisor_ = divisor;
    state_ = may_nest_ && may_nest_() ? State::LastLater : State::Last;
    if (state_ == State::Last) sums_.before_last_backward(divisor_);
  }
  void after_backward(std::int64_t microbatch) override {
    if (state_ == State::LastLater) sums_.before_last_backward(divisor_);
    sums_.after_backward(microbatch);
    if (std::exchange(state_, State::NotLast) != State::NotLast) sums_.reduce({});
  }
  void finish() override { sums_.finish(); }
  void drop_sums() override {
    state_ = State::NotLast;
    sums_.drop_sums();
  }

 private:
  enum class State : std::uint8_t { NotLast, Last, LastLater };

  execute::StageHooks& sums_;
  std::function<bool()> may_nest_;
  State state_ = State::NotLast;
  double divisor_ = 1.0;
};

}  // namespace penstock::parameters
