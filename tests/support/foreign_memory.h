// The stand-in device's memory, and where each thread is on it.
//
// foreign_device.cpp and foreign_nccl.cpp use it.  Knows no tensors.
#pragma once
#include <c10/core/Allocator.h>

#include "tests/support/foreign_streams.h"

namespace penstock::testing_support::foreign {

c10::Allocator& allocator();

// Memory that the host may touch, of what is at an address of the device.
void* opened(const void* closed);

// The device that this thread is at.
int current_device();
int exchange_device(int device);
std::int64_t current_stream(int device);
std::int64_t exchange_stream(int device, std::int64_t id);

// A stream other than the one that took the memory uses it: it is kept until that is done.
void keep_for(const c10::DataPtr& memory, int device, std::int64_t stream);

// While one lives, this thread takes memory that no stream has anything to do with.
class TakesFreshMemory {
 public:
  TakesFreshMemory();
  ~TakesFreshMemory();

 private:
  bool before_;
};

}  // namespace penstock::testing_support::foreign
