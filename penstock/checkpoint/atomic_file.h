// Replaces a file in one go: readers see the old content or the new, never a part.
//
// The writers of checkpoint/ and train/ use it.  Knows no formats.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace penstock::checkpoint {

// Writes the pieces in order to a temporary file in the same folder, flushes it to disk, renames it
// to `path` and flushes the folder.
// Throws: CheckpointError with the path and the system's reason; `path` is then as before.
void write_atomically(const std::string& path, const std::vector<std::string_view>& pieces);

}  // namespace penstock::checkpoint
