// A text that a command reads: a file, or the standard input where "-" is written for it.
//
// Knows no grammar.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace penstock::cli {

struct InputFile {
  std::string name;  // Name as errors print it: the path, or "standard input".
  std::string text;
};

// Reads no further than `bytes_max`, so that an endless file (a device) ends in an error, too.
// Throws: ConfigError as read_file().
InputFile read_input(std::string_view what, const std::string& path, std::size_t bytes_max);

}  // namespace penstock::cli
