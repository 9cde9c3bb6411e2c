// Whether a system call is refused as such: the kernel is older than it, or a container's filter
// lets nobody make it.
//
// Whoever has another way asks this after a call, and goes it.  A filter answers EPERM where it
// should say ENOSYS; the other way then finds out whether that was meant for this file.
#pragma once
#include <cerrno>

namespace penstock {

// error: as errno.
constexpr bool is_refused(int error) { return error == ENOSYS || error == EPERM; }

}  // namespace penstock
