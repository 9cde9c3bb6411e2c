// The two ends of a connection without waiting: what is to be written waits in memory, and what has
// come is taken.
//
// connection.h has the launcher's side, host_agent.h a host's.  Knows no frames.
#pragma once
#include <cstddef>
#include <string>

#include "penstock/core/file_descriptor.h"

namespace penstock::hosts {

// Takes what can be read now.
// Returns: whether more may come; false at its end, or when it is broken.
bool read_available(int fd, std::string& into);

// Writes what can be written now, and drops it from `waiting`.
// Returns: whether the other end still reads.
bool write_available(int fd, std::string& waiting);

}  // namespace penstock::hosts
