// Makes new parameters of a step's summed gradients: finite? -> scale or skip -> clip -> step ->
// round.  A part that a program has set since the last update goes on from what it was set to.
//
// The Trainer has one with an Optimizer, the Python package's engines with whatever optimizer a
// script gives, as a callback.  It owns the masters, and what is in files between updates.  Who
// calls it knows the norm of the whole gradient, and gathers parameters afterwards.  Knows no ranks
// and no models.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/plan/partition/part_runs.h"
#include "penstock/runtime/offload/place.h"
#include "penstock/runtime/parameters/parts.h"
#include "penstock/runtime/update/gradient_scale.h"
#include "penstock/runtime/update/master_weights.h"
#include "penstock/runtime/update/offloaded_parts.h"

namespace penstock::update {

using partition::PartRun;

// What a gradient that is not finite means.
enum class Overflow : std::uint8_t {
  Fails,      // The step is an error.
  SkipsStep,  // Parameters stay as they are, and the gradient scale falls.
};

// What a gradient of this 2-norm is multiplied by, so that it has at most the norm `largest`; 0:
// any.  Source: torch.nn.utils.clip_grad_norm_.
double clip_factor(double largest, double norm);

// A gradient's 2-norm from its parameters' squared ones.  They are added as they stand: in model
// order no layout changes the bits.
double gradient_norm(std::span<const double> squares);

struct UpdateOptions {
  double clipping = 0.0;  // Largest 2-norm of the gradient; 0: none.
  Overflow overflow = Overflow::Fails;
  // The place of states, and of masters of short types, between updates; Device: where what is
  // updated is.  The host updates those that are not on the device.
  offload::Where states = {};
  // Elements that are updated, or read ahead, together.
  std::int64_t elements_at_once = partition::kElementsAtOnce;
  // Tensors of a part's size that the optimizer keeps of each; absent: nobody knows.
  std::optional<std::int64_t> states_per_part = {};
};

class Update {
 public:
  // Steps an optimizer on masters().tensors() of these parts, from their gradients.  Other masters
  // have no gradient in the meantime.
  using Step = std::function<void(PartRun)>;

  // Whoever multiplies losses by `scale` has it, too.
  // Throws: ConfigError, for a folder that cannot be used, or has no room.
  Update(std::vector<parameters::Part> parts, std::shared_ptr<GradientScale> scale,
         const UpdateOptions& options);

  // Whether apply() of that norm will skip the step.
  bool skips(double norm) const;

  // Scales and clips the parts' gradients, updates the parts, and returns true.  Returns false for
  // a step that is skipped.  `norm` is the whole gradient's, without the gradient scale. Throws:
  // NumericsError, where a norm that is not finite fails the step, and for an overflow at the
  // smallest gradient scale; all parts are then as before.  Its text for `number` 7 and `where` "
  // at loss 2.5" is "step 7: the gradient norm is nan at loss 2.5".
  bool apply(double norm, std::int64_t number, const std::string& where, const Step& step);

  // What a program has set parts to since the last update becomes their masters'; apply() does so
  // itself.
  void take_changes();

  // The parts' gradients become those of the loss itself, without the gradient scale, in the type
  // of the masters: to be seen and changed before the next apply(), which does not divide them.
  void unscale_gradients();
  // What the parts' gradients are multiplied by just now.
  double gradients_scale() const { return are_unscaled_ ? 1.0 : scale_->value(); }
  // The parts have no gradients, and the next ones are scaled.
  void begin_gradients() { are_unscaled_ = false; }

  MasterWeights& masters() { return *masters_; }
  const MasterWeights& masters() const { return *masters_; }
  GradientScale& scale() { return *scale_; }
  const GradientScale& scale() const { return *scale_; }
  std::int64_t skipped_steps() const { return skipped_steps_; }
  void set_skipped_steps(std::int64_t steps) { skipped_steps_ = steps; }

  // The memory that optimizer states may have; null: nothing is in a file.
  OffloadedParts* memory() { return memory_.get(); }
  std::int64_t file_bytes() const { return memory_ ? memory_->file_bytes() : 0; }

 private:
  UpdateOptions options_;
  std::vector<at::Tensor> parts_;
  std::shared_ptr<GradientScale> scale_;
  std::unique_ptr<OffloadedParts> memory_;
  std::optional<MasterWeights> masters_;
  std::vector<PartRun>
      runs_;  // Runs in which it steps, so that little is copied or brought at a time.
  std::int64_t skipped_steps_ = 0;
  bool are_unscaled_ = false;  // The parts' gradients.
};

}  // namespace penstock::update
