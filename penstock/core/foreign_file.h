// A file that came from somewhere else: opened without a wait, and only if it is a regular one.
//
// Readers of checkpoints, models, corpora and run directories open what they find there with it,
// and say what is wrong in words of their own.  What a user names may also be a pipe: read_file.h.
// An archive can hold pipes, and links to devices that never end.  Knows no formats.
// Units: bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/file_descriptor.h"
#include "penstock/core/text.h"

namespace penstock {

struct ForeignFile {
  FileDescriptor file;
  std::uint64_t bytes = 0;  // Size when it was opened.
  // Why it is not open, to be said behind its name: "cannot be read: No such file or directory",
  // "is a pipe, and no file".
  std::string problem;

  explicit operator bool() const { return static_cast<bool>(file); }
};

ForeignFile open_foreign_file(const std::string& path);
// Judges a descriptor that is open already; one that is not open by the reason in errno.
ForeignFile foreign_file(FileDescriptor file);

struct ForeignText {
  std::string text;
  std::string problem;  // ForeignFile's problem; empty: `text` is all of it.
};

// Reads a file.  One that is larger than `bytes_max` is refused before it is read.
ForeignText foreign_text(const std::string& path, std::size_t bytes_max);

// Throws: a Refusal, whose message begins with `what` and the path.
template <class Refusal = ConfigError>
std::string read_foreign_file(std::string_view what, const std::string& path,
                              std::size_t bytes_max) {
  ForeignText read = foreign_text(path, bytes_max);
  if (read.problem.empty()) return std::move(read.text);
  throw Refusal(str(what, " ", quoted_path(path), ": ", read.problem));
}

}  // namespace penstock
