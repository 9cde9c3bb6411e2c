// One file of a corpus, read at byte offsets.
//
// The readers of token files use it.  It is read by calls and not mapped: a file that a run reads
// for days may shrink, or its disk may fail.  That is then an error with a place and not a signal.
// Nor does memory fill with pages that were used once.  Knows no format.  Units: bytes.  Thread
// safety: all calls are const and may overlap.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "penstock/core/file_descriptor.h"
#include "penstock/core/foreign_file.h"

namespace penstock::data {

class DataFile {
 public:
  // Throws: ConfigError with the system's reason, and for what is no file with bytes in it.
  explicit DataFile(const std::string& path);
  // Takes a file that is open; `name` is what errors say.
  DataFile(FileDescriptor file, std::string name);

  const std::string& path() const { return path_; }
  std::int64_t size() const { return size_; }

  // Fills `out` from `offset` on.
  // Throws: ConfigError where the file ends before, or the system refuses.
  void read(std::int64_t offset, std::span<std::byte> out) const;

  // Throws a ConfigError: token file "PATH", byte OFFSET: WHY.
  [[noreturn]] void refuse(std::int64_t offset, const std::string& why) const;

 private:
  DataFile(ForeignFile opened, std::string name);

  std::string path_;
  FileDescriptor file_;
  std::int64_t size_ = 0;
};

}  // namespace penstock::data
