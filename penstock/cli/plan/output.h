// Where a command's result goes: the standard output, or a file that is written whole or not at
// all.
//
// Knows no formats.
#pragma once
#include <string>

namespace penstock::cli {

// To the standard output where `path` is empty or "-".
// Throws: ConfigError when the file cannot be written, which is then as before; Error when the
// standard output cannot.
void write_output(const std::string& text, const std::string& path);

}  // namespace penstock::cli
