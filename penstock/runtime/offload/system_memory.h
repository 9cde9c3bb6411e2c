// Memory that goes back to the system as soon as it is freed.
//
// Allocators like glibc's keep what is freed for the next of its size.  They hold a quarter more
// than is in use at the peak, and no less when tensors move into files.  Pages and buckets of
// gradients, which come and go in every step, take their memory from the system itself.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>

namespace penstock::offload {

// Size from which a tensor has memory of its own.  It makes two of x86's large pages, which are
// asked for, since small ones cost a fault each.
inline constexpr std::int64_t kOwnMemoryBytes = std::int64_t{4} << 20;

// Zeros.  Small tensors, and those on a device, have the memory of all others.  A storage that is
// given memory anew, by its allocator(), has it from the system again.
at::Tensor zeros_of_system(at::IntArrayRef sizes, const at::TensorOptions& options);

// The same without memory until its storage is given some.  Its storage claims to have all bytes,
// so it may be cut into views; nothing may read it.
at::Tensor without_memory(at::IntArrayRef sizes, const at::TensorOptions& options);

}  // namespace penstock::offload
