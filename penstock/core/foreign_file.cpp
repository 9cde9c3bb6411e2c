#include "penstock/core/foreign_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "penstock/core/read_at.h"

namespace penstock {
namespace {

std::string unreadable(int error) { return str("cannot be read: ", std::strerror(error)); }

std::string kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "folder";
  if (S_ISFIFO(mode)) return "pipe";
  if (S_ISSOCK(mode)) return "socket";
  return "device";
}

}  // namespace

ForeignFile foreign_file(FileDescriptor file) {
  ForeignFile opened;
  struct stat status = {};
  if (!file || ::fstat(file.get(), &status) != 0) {
    opened.problem = unreadable(errno);
  } else if (!S_ISREG(status.st_mode)) {
    opened.problem = str("is a ", kind_of(status.st_mode), ", and no file");
  } else {
    opened.file = std::move(file);
    opened.bytes = static_cast<std::uint64_t>(status.st_size);
  }
  return opened;
}

ForeignFile open_foreign_file(const std::string& path) {
  return foreign_file(
      FileDescriptor(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)));
}

ForeignText foreign_text(const std::string& path, std::size_t bytes_max) {
  const ForeignFile opened = open_foreign_file(path);
  ForeignText read{.text = {}, .problem = opened.problem};
  if (!opened) return read;
  if (opened.bytes > bytes_max) {
    read.problem = str("larger than ", bytes_max, " bytes");
    return read;
  }
  read.text.resize(opened.bytes);
  const ReadAt got = read_at(opened.file.get(), 0, std::as_writable_bytes(std::span(read.text)));
  if (got.error != 0) read.problem = unreadable(got.error);
  read.text.resize(got.bytes);
  return read;
}

}  // namespace penstock
