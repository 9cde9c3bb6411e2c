#include "penstock/core/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& path) {
  throw Error(str("cannot write \"", path, "\": ", std::strerror(errno)));
}

void write_all(int descriptor, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(path);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

// An open file beside `target`, that is removed again unless it took the target's place.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& target)
      : target_(target),
        path_(str(target, ".tmp-", ::getpid())),
        descriptor_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
    if (descriptor_ < 0) fail(target_);
  }
  ~TemporaryFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!kept_) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(std::string_view bytes) { write_all(descriptor_, bytes, target_); }
  void flush_and_close() {
    if (::fsync(descriptor_) != 0) fail(target_);
    const int descriptor = descriptor_;
    descriptor_ = -1;
    if (::close(descriptor) != 0) fail(target_);
  }
  void replace_target() {
    if (::rename(path_.c_str(), target_.c_str()) != 0) fail(target_);
    kept_ = true;
  }

 private:
  const std::string target_;
  const std::string path_;
  int descriptor_;
  bool kept_ = false;
};

void flush_folder(const std::string& path) {
  const auto parent = fs::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;  // Not every file system lets a folder be opened.
  ::fsync(descriptor);
  ::close(descriptor);
}

// A pipe or a device: what has no content that could be replaced.
bool is_stream(const std::string& path) {
  std::error_code none;
  const fs::file_type type = fs::status(path, none).type();
  return type == fs::file_type::fifo || type == fs::file_type::character ||
         type == fs::file_type::socket || type == fs::file_type::block;
}

void write_stream(const std::string& path, const std::vector<std::string_view>& pieces) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor < 0) fail(path);
  try {
    for (const std::string_view piece : pieces) write_all(descriptor, piece, path);
  } catch (...) {
    ::close(descriptor);
    throw;
  }
  ::close(descriptor);
}

// What a link leads to, or `path`.
std::string followed(const std::string& path) {
  std::error_code error;
  const fs::path target = fs::is_symlink(path, error) ? fs::canonical(path, error) : fs::path();
  return target.empty() || error ? path : target.string();
}

}  // namespace

void write_atomically(const std::string& path, const std::vector<std::string_view>& pieces) {
  if (is_stream(path)) {
    write_stream(path, pieces);
    return;
  }
  const std::string target = followed(path);
  TemporaryFile file(target);
  for (const std::string_view piece : pieces) file.write(piece);
  file.flush_and_close();
  file.replace_target();
  flush_folder(target);
}

}  // namespace penstock
