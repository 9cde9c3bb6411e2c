// Counts the activations alive on one rank while its program runs, and what they take.
//
// verify holds them against limits, simulate adds the time.  An activation lives from the start of
// its F to the end of its B or W; of a split backward only the kept share lives on from the end of
// I.  A forward-only schedule keeps none.
#pragma once
#include <algorithm>
#include <cstdint>

#include "penstock/plan/verify/per_stage.h"
#include "penstock/schedule/schedule.h"

namespace penstock::verify {

class LiveActivations {
 public:
  // `activation` must outlive this.
  LiveActivations(schedule::Purpose purpose, const PerStage& activation, double keep)
      : trains_(purpose == schedule::Purpose::Train), activation_(&activation), keep_(keep) {}

  void start(const schedule::Action& action) {
    if (trains_ && action.op == schedule::Op::Forward) start(action.op, size(action));
  }
  void end(const schedule::Action& action) {
    if (schedule::is_backward(action.op)) end(action.op, size(action));
  }

  // The same for those who have sizes in tables: F, B, I or W of a schedule that trains, with the
  // size of its activation.
  void start(schedule::Op op, double size) {
    if (op != schedule::Op::Forward) return;
    ++count_;
    memory_ += size;
    peak_count_ = std::max(peak_count_, count_);
    peak_memory_ = std::max(peak_memory_, memory_);
  }
  void end(schedule::Op op, double size) {
    const bool frees = op == schedule::Op::Backward;
    const bool frees_kept = op == schedule::Op::BackwardWeight;
    if (frees || frees_kept) --count_;
    if (frees) memory_ -= size;
    if (frees_kept) memory_ -= size * keep_;
    if (op == schedule::Op::BackwardInput) memory_ -= size * (1.0 - keep_);
  }

  double memory() const { return memory_; }
  std::int32_t peak_count() const { return peak_count_; }
  double peak_memory() const { return peak_memory_; }

 private:
  double size(const schedule::Action& action) const {
    return activation_->at(action.stage, *action.microbatch);
  }

  bool trains_;
  const PerStage* activation_;
  double keep_;
  std::int32_t count_ = 0;
  double memory_ = 0.0;
  std::int32_t peak_count_ = 0;
  double peak_memory_ = 0.0;
};

}  // namespace penstock::verify
