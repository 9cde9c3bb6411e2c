// Memory that a process keeps from step to step, or gives back as it is freed.
//
// A step frees what the next one takes again: activations, gradients, logits.  Left alone, glibc's
// allocator gives it back to the system meanwhile, and each of its pages costs a fault, and zeros,
// when it comes again.  The limits are the process's, so whoever owns the process asks: a rank of
// `penstock train` or `evaluate`.  A Trainer in a program of its user's changes nothing.  What is
// kept is never more than was in use at one time, but for gaps.  Where tensors move into files,
// memory that they leave goes back.  Limits stay where the variables of mallopt(3), or
// GLIBC_TUNABLES, say what the user wants, and with other allocators than glibc's.
// Thread safety: any thread may call each of these.
#pragma once
#include <cstddef>

namespace penstock::offload {

// Larger blocks come from the system, and go back to it at once: a gap in the heap that somebody
// else has cut into would cost as much again.
inline constexpr std::size_t kKeptBytesMax = std::size_t{32} << 20;

// Freed memory is kept from now on.
void keep_freed_memory();

// Gives back what is free now: when a phase ends that has used more than the next one will.
void give_back_free_memory();

// Size from which what a process frees goes back at once, and costs page faults when it is needed
// again.
inline constexpr std::size_t kGivenBackBytes = std::size_t{1} << 20;

// Freed memory goes back at once from now on: for a configuration that offloads something.
void give_freed_memory_back();

}  // namespace penstock::offload
