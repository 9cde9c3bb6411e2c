#include "penstock/checkpoint/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::checkpoint {
namespace {

[[noreturn]] void fail(const std::string& what, const std::string& path) {
  throw CheckpointError(str("cannot ", what, " \"", path, "\": ", std::strerror(errno)));
}

// An open file that is removed again unless keep() was called.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path)
      : path_(std::move(path)),
        descriptor_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
    if (descriptor_ < 0) fail("create", path_);
  }
  ~TemporaryFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!kept_) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail("write", path_);
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
  }
  void flush_and_close() {
    if (::fsync(descriptor_) != 0) fail("flush", path_);
    const int descriptor = descriptor_;
    descriptor_ = -1;
    if (::close(descriptor) != 0) fail("close", path_);
  }
  void rename_to(const std::string& path) {
    if (::rename(path_.c_str(), path.c_str()) != 0) fail("rename to", path);
    kept_ = true;
  }

 private:
  std::string path_;
  int descriptor_;
  bool kept_ = false;
};

void flush_folder(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;  // Not every file system lets a folder be opened.
  ::fsync(descriptor);
  ::close(descriptor);
}

}  // namespace

void write_atomically(const std::string& path, const std::vector<std::string_view>& pieces) {
  TemporaryFile file(str(path, ".tmp-", ::getpid()));
  for (const std::string_view piece : pieces) file.write(piece);
  file.flush_and_close();
  file.rename_to(path);
  flush_folder(path);
}

}  // namespace penstock::checkpoint
