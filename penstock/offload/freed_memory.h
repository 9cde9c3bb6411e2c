// Gives memory that a process frees back to the system at once.
//
// glibc's allocator keeps freed tensors of up to 32 MiB for the next of their size, once one of
// them was freed, so a process that moves its tensors into files has no less memory than before.
// A process is asked by who owns it: train::run() and the Python package do, where a configuration
// offloads something.
#pragma once
#include <cstddef>

namespace penstock::offload {

// From how many bytes on what is freed goes back at once, and costs page faults when it is needed
// again.
inline constexpr std::size_t kGivenBackBytes = std::size_t{1} << 20;

// For this process, from now on.  Nothing where MALLOC_MMAP_THRESHOLD_ says what its user wants,
// and with other allocators than glibc's.
void give_freed_memory_back();

}  // namespace penstock::offload
