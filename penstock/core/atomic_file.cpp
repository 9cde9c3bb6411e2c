#include "penstock/core/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
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

// A file of its own beside `target`: what stands there already, somebody's link perhaps, is left
// alone.
std::string make_file_beside(const std::string& target, int& descriptor) {
  constexpr int kTries = 1000;  // Leftovers of a process that had this one's number.
  for (int i = 0; i < kTries; ++i) {
    std::string path = str(target, kBeside, ::getpid(), "-", i);
    descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (descriptor >= 0 || errno != EEXIST) return path;
  }
  return {};
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
  constexpr int kLinksMax = 40;  // As many as the system follows.
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
  const auto parent = fs::path(target_).parent_path();
  flush_folder(parent.empty() ? "." : parent.string());
  if (advanced_) advanced_();
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
