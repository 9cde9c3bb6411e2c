#include "penstock/data/data_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::data {

DataFile::DataFile(const std::string& path)
    : path_(path), file_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  measure();
}

DataFile::DataFile(FileDescriptor file, std::string name)
    : path_(std::move(name)), file_(std::move(file)) {
  measure();
}

void DataFile::measure() {
  const std::string title = str("token file ", quoted_path(path_), ": ");
  struct stat status = {};
  if (!file_ || ::fstat(file_.get(), &status) != 0) {
    throw ConfigError(str(title, "cannot be read: ", std::strerror(errno)));
  }
  if (!S_ISREG(status.st_mode)) throw ConfigError(title + "is not a file");
  if (status.st_size == 0) throw ConfigError(title + "is empty; it must hold tokens");
  size_ = status.st_size;
}

void DataFile::read(std::int64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t count = ::pread(file_.get(), out.data(), out.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refuse(offset, str("cannot be read: ", std::strerror(errno)));
    if (count == 0) {
      refuse(offset, str("ends here, and ", out.size(), " bytes more are needed; it had ", size_,
                         " bytes when it was opened"));
    }
    out = out.subspan(static_cast<std::size_t>(count));
    offset += count;
  }
}

void DataFile::refuse(std::int64_t offset, const std::string& why) const {
  throw ConfigError(str("token file ", quoted_path(path_), ", byte ", offset, ": ", why));
}

}  // namespace penstock::data
