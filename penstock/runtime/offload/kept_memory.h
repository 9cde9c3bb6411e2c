// Memory that a process keeps from step to step.
//
// A step frees what the next one takes again: activations, gradients, logits.  Left alone, glibc's
// allocator gives it back to the system meanwhile, and each of its pages costs a fault, and zeros,
// when it comes again.  The limits are the process's, so whoever owns the process asks: a rank of
// `penstock train` or `evaluate`.  A Trainer in a program of its user's changes nothing.  What is
// kept is never more than was in use at one time, but for gaps.
// Thread safety: any thread may call each of these.
#pragma once
#include <cstddef>

namespace penstock::offload {

// Larger blocks come from the system, and go back to it at once: a gap in the heap that somebody
// else has cut into would cost as much again.
inline constexpr std::size_t kKeptBytesMax = std::size_t{32} << 20;

// Freed memory is kept from now on.  Does nothing where the variables of mallopt(3), or
// GLIBC_TUNABLES, say what its user wants, and with other allocators than glibc's.
void keep_freed_memory();

// Gives back what is free now: when a phase ends that has used more than the next one will.
void give_back_free_memory();

}  // namespace penstock::offload
