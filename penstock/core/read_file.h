// The bytes of a file that a user named.
//
// The readers of schedule/ and cli/ use it; what lies in a folder is read by foreign_file.h.  Knows
// no grammar.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace penstock {

// Reads the file that a user named; it may be a pipe, a terminal or /dev/null.  Reads no further
// than `bytes_max`, and nothing of a device that never ends.  A pipe must have a writer already:
// waits for what is written, and not for a writer.
// Throws: ConfigError when it cannot be read, with the system's reason, when it is larger, or a
// pipe that nobody writes to.  The message begins with `what` and the path.
std::string read_file(std::string_view what, const std::string& path, std::size_t bytes_max);

}  // namespace penstock
