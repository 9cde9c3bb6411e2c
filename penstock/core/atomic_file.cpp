#include "penstock/core/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/file_descriptor.h"
#include "penstock/core/new_file.h"
#include "penstock/core/text.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kModeBits = 0777;

[[noreturn]] void fail(const std::string& path) {
  throw Error(str("cannot write \"", path, "\": ", std::strerror(errno)));
}

using Advanced = std::function<void()>;

constexpr std::string_view kBeside = ".tmp-";

// The first name beside `target` that `make` gets, or fails at for another reason than that
// something is there, somebody's link perhaps: what stands there already is left alone.
template <class Make>
std::string name_beside(const std::string& target, const Make& make) {
  constexpr int kTries = 1000;  // Leftovers of a process that had this one's number.
  for (int i = 0; i < kTries; ++i) {
    std::string path = str(target, kBeside, ::getpid(), "-", i);
    if (make(path) || errno != EEXIST) return path;
  }
  return {};
}

std::string make_file_beside(const std::string& target, int& descriptor) {
  return name_beside(target, [&](const std::string& path) {
    descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    return descriptor >= 0;
  });
}

// The process that writes a file with such a name; absent for other names.
std::optional<pid_t> writer_of(std::string_view name) {
  const std::size_t place = name.rfind(kBeside);
  if (place == std::string_view::npos) return std::nullopt;
  const std::vector<std::string> numbers = split(name.substr(place + kBeside.size()), '-');
  if (numbers.size() != 2 || !parse_integer(numbers[1])) return std::nullopt;
  const auto process = parse_integer(numbers[0]);
  return process && *process > 0 ? std::optional(static_cast<pid_t>(*process)) : std::nullopt;
}

// A pipe or a device: what has no content that could be replaced.
bool is_stream(const std::string& path) {
  std::error_code none;
  const fs::file_type type = fs::status(path, none).type();
  return type == fs::file_type::fifo || type == fs::file_type::character ||
         type == fs::file_type::socket || type == fs::file_type::block;
}

std::string folder_of(const std::string& path) {
  const auto parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Whether the old name stays, or goes when the file has another one.
enum class Stays : std::uint8_t { There, Away };
bool set_aside(const std::string& path, const std::string& name, Stays stays) {
  if (stays == Stays::There) {
    if (::link(path.c_str(), name.c_str()) == 0) return true;
    if (errno == EEXIST) return false;
  }
  // Also on file systems where a file has one name only.
  struct stat status = {};
  const bool is_taken = ::lstat(name.c_str(), &status) == 0;
  if (is_taken) errno = EEXIST;
  return !is_taken && ::rename(path.c_str(), name.c_str()) == 0;
}

// What stands at a path while a new file comes there; it comes back unless it is let go.
class OldFile {
 public:
  // Throws: Error with the path and the system's reason.
  OldFile(std::string path, Stays stays) : path_(std::move(path)) {
    struct stat status = {};
    if (::lstat(path_.c_str(), &status) != 0) return;  // None.
    errno = EISDIR;
    if (S_ISDIR(status.st_mode)) fail(path_);
    bool is_aside = false;
    aside_ = name_beside(path_, [&](const std::string& name) {
      is_aside = set_aside(path_, name, stays);
      return is_aside;
    });
    if (is_aside) return;
    aside_.clear();
    fail(path_);
  }
  ~OldFile() {
    if (is_let_go_) return;
    aside_.empty() ? ::unlink(path_.c_str()) : ::rename(aside_.c_str(), path_.c_str());
  }
  OldFile(OldFile&& other) noexcept
      : path_(std::move(other.path_)),
        aside_(std::move(other.aside_)),
        is_let_go_(std::exchange(other.is_let_go_, true)) {}
  OldFile(const OldFile&) = delete;
  OldFile& operator=(const OldFile&) = delete;

  void let_go() {
    is_let_go_ = true;
    if (!aside_.empty()) ::unlink(aside_.c_str());
  }

 private:
  std::string path_;
  std::string aside_;  // Empty: nothing was there.
  bool is_let_go_ = false;
};

void write_stream(const std::string& path, const std::vector<std::string_view>& pieces,
                  const Advanced& advanced) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor < 0) fail(path);
  try {
    for (const std::string_view piece : pieces) write_all(descriptor, piece, path, advanced);
  } catch (...) {
    ::close(descriptor);
    throw;
  }
  ::close(descriptor);
}

// What a link leads to, whether it is there or not; else `path`.
std::string followed(const std::string& path) {
  constexpr int kLinksMax = 40;  // Linux follows as many.
  std::error_code error;
  fs::path target = path;
  for (int i = 0; fs::is_symlink(target, error); ++i) {
    errno = ELOOP;
    if (i == kLinksMax) fail(path);
    target = target.parent_path() / fs::read_symlink(target, error);
  }
  return target.string();
}

}  // namespace

void remove_unfinished_files(const std::string& folder) {
  std::error_code error;
  auto entry = fs::directory_iterator(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const auto writer = writer_of(entry->path().filename().string());
    if (!writer || *writer == ::getpid() || ::kill(*writer, 0) == 0) continue;
    std::error_code ignored;
    if (errno == ESRCH) fs::remove(entry->path(), ignored);
  }
}

PreparedFile::PreparedFile(const std::string& path, const std::vector<std::string_view>& pieces,
                           const Advanced& advanced)
    : target_(followed(path)), advanced_(advanced) {
  struct stat old = {};
  const bool replaces = ::stat(target_.c_str(), &old) == 0;
  if (replaces && S_ISDIR(old.st_mode)) {
    errno = EISDIR;
    fail(target_);
  }
  int number = -1;
  const std::string beside = make_file_beside(target_, number);
  if (number < 0) fail(target_);
  NewFile file(FileDescriptor(number), beside, target_, advanced);
  if (replaces) file.set_mode(old.st_mode & kModeBits);
  for (const std::string_view piece : pieces) file.write(piece);
  file.finish();
  path_ = beside;
}

PreparedFile PreparedFile::of_written(std::string written, const std::string& path) {
  PreparedFile file;
  file.target_ = followed(path);
  file.path_ = std::move(written);
  return file;
}

PreparedFile::~PreparedFile() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

PreparedFile::PreparedFile(PreparedFile&& other) noexcept
    : target_(std::move(other.target_)),
      advanced_(std::move(other.advanced_)),
      path_(std::exchange(other.path_, {})) {}

void PreparedFile::put_in_place() {
  if (::rename(path_.c_str(), target_.c_str()) != 0) fail(target_);
  path_.clear();
  flush_folder(folder_of(target_));
  if (advanced_) advanced_();
}

bool PreparedFile::is_there() const {
  std::error_code error;
  const bool same_size = fs::file_size(path_, error) == fs::file_size(target_, error);
  return !error && same_size && bytes_of(path_) == bytes_of(target_);
}

void replace_together(std::span<PreparedFile> parts, PreparedFile& head) {
  if (parts.empty()) return head.put_in_place();
  if (parts.size() == 1 && head.is_there()) return parts.front().put_in_place();
  OldFile old_head(head.target(), Stays::Away);
  flush_folder(folder_of(head.target()));
  std::vector<OldFile> old_parts;
  for (PreparedFile& part : parts) {
    old_parts.emplace_back(part.target(), Stays::There);
    part.put_in_place();
  }
  head.put_in_place();
  for (OldFile& old : old_parts) old.let_go();
  old_head.let_go();
}

void write_atomically(std::span<const NewContent> files, const Advanced& advanced) {
  std::vector<PreparedFile> ready;
  for (const NewContent& content : files) {
    if (is_stream(content.path)) continue;
    ready.emplace_back(content.path, content.pieces, advanced);
  }
  for (const NewContent& content : files) {
    if (is_stream(content.path)) write_stream(content.path, content.pieces, advanced);
  }
  for (PreparedFile& file : ready) file.put_in_place();
}

void write_atomically(const std::string& path, const std::vector<std::string_view>& pieces,
                      const Advanced& advanced) {
  const NewContent content{path, pieces};
  write_atomically({&content, 1}, advanced);
}

}  // namespace penstock
