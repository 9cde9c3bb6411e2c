// The paths of this program and of the one that has tensors: libexec/penstock-runtime, next to this
// program's folder.
//
// train.cpp and memory.cpp start it.  Knows nothing of what it does.
#pragma once
#include <string>
#include <vector>

#include "penstock/cli/rank_start.h"

namespace penstock::cli {

// The path of this program; "" where the system does not tell.
std::string own_program();

// The planning half may be installed alone.
bool has_runtime_program();

// Throws: Error when it is not there.
std::string runtime_program();

// Becomes it, called with `words`, with the same process id; does not return.
// Throws: Error when that fails.
[[noreturn]] void become(const std::vector<std::string>& words);
// The same, to be a rank that starts with `start`.
[[noreturn]] void become_rank(const std::vector<std::string>& words, const RankStart& start);

}  // namespace penstock::cli
