// Replaces a file in one go: readers see the old content or the new, never a part.
//
// The writers of checkpoint/, train/ and cli/ use it.  Knows no formats.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// Writes the pieces in order to a temporary file in the same folder, flushes it to disk, renames it
// to `path` and flushes the folder.  A link stays a link, and what it leads to is replaced; into
// what is no file (a pipe, a device) the pieces are written as they are.
// Throws: Error with the path and the system's reason; a file at `path` is then as before.
void write_atomically(const std::string& path, const std::vector<std::string_view>& pieces);

}  // namespace penstock
