// The place of a command's result: the standard output, or files that are written whole or not at
// all.
//
// Knows no formats.
#pragma once
#include <span>
#include <string>

namespace penstock::cli {

// Writes to the standard output if `path` is empty or "-".
// Throws: ConfigError when the file cannot be written, which is then as before; Error when the
// standard output cannot.
void write_output(const std::string& text, const std::string& path);

struct OutputFile {
  std::string text;
  std::string path;
};

// Writes all of the files, or none where one cannot be written.  Throws: ConfigError.
void write_files(std::span<const OutputFile> files);

}  // namespace penstock::cli
