#include "penstock/data/data_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/read_at.h"
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
  const ReadAt read = read_at(file_.get(), offset, out);
  if (read.bytes == out.size()) return;
  offset += static_cast<std::int64_t>(read.bytes);
  if (read.error != 0) refuse(offset, str("cannot be read: ", std::strerror(read.error)));
  refuse(offset, str("ends here, and ", out.size() - read.bytes, " bytes more are needed; it had ",
                     size_, " bytes when it was opened"));
}

void DataFile::refuse(std::int64_t offset, const std::string& why) const {
  throw ConfigError(str("token file ", quoted_path(path_), ", byte ", offset, ": ", why));
}

}  // namespace penstock::data
