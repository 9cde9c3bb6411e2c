// Zeros whose memory is the system's, and goes back to it as soon as they end.
//
// For pages and buckets of gradients, which come and go in every step.  Allocators that keep what
// is freed for the next of its size, like glibc's, hold a quarter more than what is in use at its
// peak.  Small tensors, and those on a device, have the memory of all others.
#pragma once
#include <ATen/core/Tensor.h>

namespace penstock::zero {

// From how many bytes on a tensor has memory of its own: what makes two of x86's large pages, which
// are asked for, since small ones cost a fault each.
inline constexpr std::int64_t kOwnMemoryBytes = std::int64_t{4} << 20;

// A storage that is given memory anew, by its allocator(), has it from the system again.
at::Tensor zeros_of_system(at::IntArrayRef sizes, const at::TensorOptions& options);

// The same without memory until its storage is given some.  Its storage claims to have all bytes,
// so it may be cut into views; nothing may read it.
at::Tensor without_memory(at::IntArrayRef sizes, const at::TensorOptions& options);

}  // namespace penstock::zero
