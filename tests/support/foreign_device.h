// A device for tests on machines without one: kForeign, whose memory the host must not touch.
//
// Its kernels are the CPU's, on copies.  (What torch's fallback does not copy back, it does not
// have: the running statistics of BatchNorm.)  Its memory is open to reading and writing only while
// torch copies from or to it: code that takes a pointer into it for one into the host's gets a
// segmentation fault.  It stands for torch's HPU, which the CPU's torch knows by name and has no
// kernels for. Linked with foreign_device.cpp, it is there from the start.  Thread safety: as
// torch's own.
#pragma once
#include <c10/core/Device.h>

namespace penstock::testing_support {

inline constexpr c10::DeviceType kForeign = c10::DeviceType::HPU;

// The device of tests of devices: kForeign, or CUDA's first one when PENSTOCK_TEST_DEVICE is
// "cuda".
c10::Device device_under_test();

// Whether that device has the host's kernels, and so the host's bits: kForeign does.
inline bool has_host_kernels() { return device_under_test().type() == kForeign; }

}  // namespace penstock::testing_support
