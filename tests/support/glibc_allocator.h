// Whether malloc() is glibc's: sanitizers bring their own.
//
// For tests of code that sets its limits.  Knows no limits.
#pragma once
#include <cstdlib>

namespace penstock::testing_support {

#if !defined(__GLIBC__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kHasAllocatorOfGlibc = false;
#else
inline constexpr bool kHasAllocatorOfGlibc = true;
#endif

}  // namespace penstock::testing_support
