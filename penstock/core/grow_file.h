// Room at the end of a file that will be mapped: what is missing is an error now, and no SIGBUS
// when it is used.
#pragma once
#include <cstdint>

namespace penstock {

// Makes a file of `size` bytes larger by `bytes`, which are zeros.  Returns: 0, or why there is no
// room, as errno.  A file in memory is best grown with signals blocked: each begins the call anew.
int grow_file(int descriptor, std::int64_t size, std::int64_t bytes);

}  // namespace penstock
