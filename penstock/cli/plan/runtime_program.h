// Where the program that has tensors is: libexec/penstock-runtime, next to this program's folder.
//
// train.cpp starts it.  Knows nothing of what it does.
#pragma once
#include <string>
#include <vector>

namespace penstock::cli {

// Throws: Error when it is not there.
std::string runtime_program();

// Becomes it, with the same process id; does not return.
// Throws: Error when that fails.
[[noreturn]] void become(const std::vector<std::string>& words);

}  // namespace penstock::cli
