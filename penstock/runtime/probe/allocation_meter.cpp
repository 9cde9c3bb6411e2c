#include "penstock/runtime/probe/allocation_meter.h"

#include <algorithm>

namespace penstock::probe {

class AllocationMeter::Counter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t,
                         c10::Device device) override {
    if (!device.is_cpu()) return;
    now_ += bytes;
    peak_ = std::max(peak_, now_);
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::int64_t now_ = 0;
  std::int64_t peak_ = 0;
};

AllocationMeter::AllocationMeter()
    : counter_(std::make_shared<Counter>()), guard_(c10::DebugInfoKind::PROFILER_STATE, counter_) {}

std::int64_t AllocationMeter::now() const { return counter_->now_; }
std::int64_t AllocationMeter::peak() const { return counter_->peak_; }
void AllocationMeter::reset_peak() { counter_->peak_ = counter_->now_; }

}  // namespace penstock::probe
