// The step of DeepSpeed's even/odd clock at which each F and B of a schedule runs.
//
// to_stepped() makes it first, then writes the instructions.  Knows no instructions and no buffers.
#pragma once
#include <cstdint>
#include <vector>

#include "penstock/schedule/schedule.h"

namespace penstock::schedule::deepspeed {

// Puts every action at its earliest step, behind what stands before it on its stage and a step
// after what it needs.  A schedule that trains has F at steps of the stage's parity and B at the
// others.
class Timetable {
 public:
  // Throws: ScheduleError for an action that the dialect has no form for, as to_stepped(), and for
  // a schedule that does not verify.
  explicit Timetable(const Schedule& schedule);

  bool trains() const { return trains_; }
  std::int32_t stages() const { return stages_; }
  std::int32_t microbatches() const { return microbatches_; }
  std::int32_t steps() const { return steps_; }

  // REQUIRES: stage and microbatch in range; for backward(), trains().
  std::int32_t forward(std::int32_t stage, std::int32_t microbatch) const;
  std::int32_t backward(std::int32_t stage, std::int32_t microbatch) const;

 private:
  friend class Timekeeper;
  std::size_t cell(std::int32_t stage, std::int32_t microbatch) const;

  bool trains_;
  std::int32_t stages_;
  std::int32_t microbatches_;
  std::int32_t steps_ = 0;
  std::vector<std::int32_t> forward_;  // Steps by stage, then microbatch; backward_ is alike.
  std::vector<std::int32_t> backward_;
};

}  // namespace penstock::schedule::deepspeed
