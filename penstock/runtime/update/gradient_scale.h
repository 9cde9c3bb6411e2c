// The factor of an fp16 model's loss before its backward, so that small gradients do not vanish.  A
// step's gradients are divided by it.
//
// The Trainer has one; so may any loop with an optimizer of its own: it multiplies by value(),
// finds out with all its ranks whether a gradient overflowed, does not step if one did, and tells
// update() either way.  Knows no tensors and no ranks.
// Source: DeepSpeed's rule and its names (`fp16` in a configuration).  A scale that is not fixed
// begins at 2^initial_scale_power.  A step without an overflow doubles it, if loss_scale_window
// such steps, or twice or three times as many, came before it in a row.  An overflow takes one of
// `hysteresis` lives; the last one is not taken, but the scale is halved, down to min_loss_scale.
// Lives are given back when the scale is doubled, or, with consecutive_hysteresis, at every step
// without an overflow.
#pragma once
#include <cstdint>
#include <optional>

#include "penstock/config/config.h"

namespace penstock::update {

class GradientScale {
 public:
  // What steps change: with it, a run goes on as if it had not been interrupted.
  struct State {
    double value = 1.0;
    std::int64_t lives = 1;        // Overflows that are left until the scale is halved.
    std::int64_t clean_steps = 0;  // Steps in a row without an overflow, up to now.
    friend bool operator==(const State&, const State&) = default;
  };

  // 1, for good, if `options` are not enabled.
  explicit GradientScale(const config::Fp16Config& options = {});

  double value() const { return state_.value; }
  bool is_dynamic() const { return options_.enabled && options_.loss_scale == 0; }

  // Moves the scale after a step, which was skipped if it `overflowed`.
  // Throws: NumericsError for an overflow at the smallest scale.
  void update(bool overflowed);

  // None of a fixed scale, which no step changes.
  std::optional<State> state() const;
  // Makes it what it was when it was made.
  void begin_again() { *this = GradientScale(options_); }
  // Goes on from `state`, with no more lives than the options give.  A fixed scale stays.
  // Throws: Error for a state that no scale has.
  void go_on_from(const State& state);

 private:
  void shrink();

  config::Fp16Config options_;
  State state_;
};

}  // namespace penstock::update
