// Random bytes that nobody can guess, from the kernel.
//
// For words by which ranks know each other.  Not for random numbers of a model, which have a seed.
#pragma once
#include <cstddef>
#include <span>

namespace penstock {

// Throws: Error where there are none.
void fill_with_random_bytes(std::span<std::byte> bytes);

}  // namespace penstock
