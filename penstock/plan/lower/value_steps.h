// The step of its rank's program at which each stage makes its output and the gradient of its
// input.
//
// Lowering reads it to tell what a message proves.  Knows no ranks: a stage has one.
#pragma once
#include <cstdint>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/schedule/schedule.h"

namespace penstock::lower {

class ValueSteps {
 public:
  // REQUIRES: a schedule that verifies.
  explicit ValueSteps(const schedule::Schedule& schedule);

  // The step of the F; of_backward(): of the B, or of the I of a split backward.
  // REQUIRES: the schedule has one.
  std::int32_t of_forward(StageId stage, Microbatch microbatch) const {
    return forward_[cell(stage, microbatch)];
  }
  std::int32_t of_backward(StageId stage, Microbatch microbatch) const {
    return backward_[cell(stage, microbatch)];
  }

 private:
  std::size_t cell(StageId stage, Microbatch microbatch) const {
    return stage.index() * microbatches_ + microbatch.index();
  }

  std::size_t microbatches_;
  std::vector<std::int32_t> forward_;
  std::vector<std::int32_t> backward_;
};

}  // namespace penstock::lower
