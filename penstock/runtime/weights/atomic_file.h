// Replaces a file in one go, as core/atomic_file.h, for what is saved of a model.
//
// The writers of checkpoint/ and train/ use it.  Knows no formats.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::weights {

// Throws: CheckpointError with the path and the system's reason; `path` is then as before.
void write_atomically(const std::string& path, const std::vector<std::string_view>& pieces,
                      const std::function<void()>& advanced = {});

}  // namespace penstock::weights
