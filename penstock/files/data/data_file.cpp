#include "penstock/files/data/data_file.h"

#include <cstring>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/read_at.h"
#include "penstock/core/text.h"

namespace penstock::data {

DataFile::DataFile(const std::string& path) : DataFile(open_foreign_file(path), path) {}

DataFile::DataFile(FileDescriptor file, std::string name)
    : DataFile(foreign_file(std::move(file)), std::move(name)) {}

DataFile::DataFile(ForeignFile opened, std::string name)
    : path_(std::move(name)),
      file_(std::move(opened.file)),
      size_(static_cast<std::int64_t>(opened.bytes)) {
  const std::string title = str("token file ", quoted_path(path_), ": ");
  if (!file_) throw ConfigError(title + opened.problem);
  if (size_ == 0) throw ConfigError(title + "is empty; it must hold tokens");
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
