// Addresses of the virtual device's tensors, which nobody can read, and who has which.
//
// Thread safety: any thread.
#pragma once
#include <c10/core/Allocator.h>

#include <string>

namespace penstock::emulate {

// Gives out addresses of the device that the thread is at.
c10::Allocator& virtual_allocator();

// Names the operator that writes to a storage's memory, if it is the first one.
void own_memory(const c10::DataPtr& memory, const std::string& owner);

// The device that this thread is at: new tensors that name none are there.
c10::DeviceIndex current_device();
c10::DeviceIndex exchange_device(c10::DeviceIndex device);

}  // namespace penstock::emulate
