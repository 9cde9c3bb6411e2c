// The bytes of a file that a user named.
//
// The readers of schedule/ and cli/ use it; what lies in a folder is read by foreign_file.h.  Knows
// no grammar.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace penstock {

// It may be a pipe, a terminal or /dev/null.  Reads no further than `bytes_max`, and nothing of a
// device that never ends; and waits for no one to open the other end of a pipe, only for what is
// written into it.
// Throws: ConfigError when it cannot be read, with the system's reason, when it is larger, or a
// pipe that nobody writes to; the message begins with `what` and the path.
std::string read_file(std::string_view what, const std::string& path, std::size_t bytes_max);

}  // namespace penstock
