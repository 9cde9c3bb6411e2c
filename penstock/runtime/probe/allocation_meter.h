// Counts the bytes of tensors that a thread has allocated on the CPU and not yet freed, and the
// most it had at one time.
//
// The probe and tests of memory use it.  Stands where torch's profiler would stand, so it sees what
// torch's own allocator gives out, and nothing of what the memory is for.
// Thread safety: counts the thread that made it; memory that another thread frees stays counted.
#pragma once
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>

#include "penstock/runtime/probe/meter.h"

namespace penstock::probe {

class AllocationMeter : public Meter {
 public:
  AllocationMeter();
  AllocationMeter(const AllocationMeter&) = delete;
  AllocationMeter& operator=(const AllocationMeter&) = delete;

  std::int64_t now() const override;
  std::int64_t peak() const override;
  void reset_peak() override;

 private:
  class Counter;
  std::shared_ptr<Counter> counter_;
  c10::DebugInfoGuard guard_;
};

}  // namespace penstock::probe
