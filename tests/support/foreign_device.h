// A device for tests on machines without one: kForeign, whose memory the host must not touch.
//
// Its kernels are the CPU's, on copies.  (What torch's fallback does not copy back, it does not
// have: the running statistics of BatchNorm.)  The addresses of its memory are closed to the host:
// code that takes a pointer into it for one into the host's gets a segmentation fault.  Memory that
// is taken or freed is poisoned.  It stands for torch's HPU, which the CPU's torch knows by name,
// and has no kernels for.  Linked with foreign_device.cpp, it is there from the start.  It counts
// what a host does to it.  Thread safety: as torch's own; counts are those of a thread, and so of a
// rank.
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>

namespace penstock::testing_support {

inline constexpr c10::DeviceType kForeign = c10::DeviceType::HPU;

// The device of tests of devices: kForeign, or CUDA's first one when PENSTOCK_TEST_DEVICE is
// "cuda".
c10::Device device_under_test();

// Whether that device has the host's kernels, and so the host's bits: kForeign does.
inline bool has_host_kernels() { return device_under_test().type() == kForeign; }

// What this thread has asked of kForeign since it began.  A scalar, or a copy out, is a wait for
// all that the device has to do.
struct DeviceCounts {
  std::int64_t copies_out = 0, bytes_out = 0;  // Copies to the host.
  std::int64_t copies_in = 0, bytes_in = 0;
  std::int64_t scalars = 0;  // Read by the host, one by one.
  std::int64_t kernels = 0;

  DeviceCounts operator-(const DeviceCounts& before) const {
    return {copies_out - before.copies_out, bytes_out - before.bytes_out,
            copies_in - before.copies_in,   bytes_in - before.bytes_in,
            scalars - before.scalars,       kernels - before.kernels};
  }
};
const DeviceCounts& device_counts();

// What an event of kForeign says from now on, asked whether it is over, on any thread; empty: it
// is.  Nothing of the device may run meanwhile.
void set_late_events(std::function<bool()> is_over);

}  // namespace penstock::testing_support
