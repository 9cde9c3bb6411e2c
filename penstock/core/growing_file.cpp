#include "penstock/core/growing_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "penstock/core/atomic_file.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock {

GrowingFile::GrowingFile(std::string path) : path_(std::move(path)) {}

GrowingFile::~GrowingFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool GrowingFile::open(int flags) {
  // A pipe without a reader is refused and not waited for.
  descriptor_ = ::open(path_.c_str(), O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC | flags, 0644);
  if (descriptor_ < 0) failure_ = std::strerror(errno);
  return descriptor_ >= 0;
}

void GrowingFile::begin(const std::string& lines) {
  if (!lines.empty()) write_atomically(path_, {lines});
  if (open(O_WRONLY | (lines.empty() ? O_TRUNC : 0))) return;
  throw ConfigError(str("cannot write ", quoted_path(path_), ": ", failure_));
}

// A process that died in a write left it.
void GrowingFile::remove_cut_line() const {
  struct stat status = {};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) return;
  char block[4096];
  off_t end = status.st_size;
  while (end > 0) {
    const off_t begin = std::max<off_t>(0, end - static_cast<off_t>(sizeof block));
    const ssize_t count = ::pread(descriptor_, block, static_cast<std::size_t>(end - begin), begin);
    if (count != end - begin) return;
    const auto at = std::string_view(block, static_cast<std::size_t>(count)).rfind('\n');
    end = begin;
    if (at == std::string_view::npos) continue;
    end += static_cast<off_t>(at) + 1;
    break;
  }
  // What cannot be cut stays: its reader refuses it.
  if (end < status.st_size && ::ftruncate(descriptor_, end) != 0) return;
}

void GrowingFile::append(std::string_view line) {
  if (waiting_.size() + line.size() > kWaitingBytesMax) {
    ++lost_;
  } else {
    waiting_ += line;
  }
  try_again();
}

// A write may take a part of what it is given; the rest follows it, now or later.
void GrowingFile::try_again() {
  if (waiting_.empty()) return;  // What flush() found stays.
  if (descriptor_ < 0) {
    if (!open(O_RDWR)) return;
    remove_cut_line();
  }
  failure_.clear();
  std::size_t done = 0;
  while (done < waiting_.size()) {
    const ssize_t written = ::write(descriptor_, waiting_.data() + done, waiting_.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      failure_ = std::strerror(errno);
      break;
    }
    done += static_cast<std::size_t>(written);
  }
  waiting_.erase(0, done);
}

// A pipe or a device has nothing to tell.
void GrowingFile::flush() {
  try_again();
  const bool synced =
      descriptor_ < 0 || ::fsync(descriptor_) == 0 || errno == EINVAL || errno == ENOTSUP;
  if (!synced) failure_ = std::strerror(errno);
}

}  // namespace penstock
