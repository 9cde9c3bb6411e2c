#include "penstock/core/new_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "penstock/core/block_writer.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock {
namespace {

constexpr std::size_t kBytesAtOnce = std::size_t{16} << 20;

std::atomic<int> error_of_next_write{0};  // An errno; 0: none.

[[noreturn]] void fail(const std::string& path) {
  throw Error(str("cannot write \"", path, "\": ", std::strerror(errno)));
}

}  // namespace

NewFile::NewFile(std::string path, std::string named, std::function<void()> advanced)
    : NewFile(FileDescriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)),
              path, std::move(named), std::move(advanced)) {}

NewFile::NewFile(FileDescriptor file, std::string path, std::string named,
                 std::function<void()> advanced)
    : path_(std::move(path)),
      named_(std::move(named)),
      advanced_(std::move(advanced)),
      file_(std::move(file)) {
  if (file_) return;
  is_finished_ = true;  // What is there is somebody else's.
  fail(named_);
}

NewFile::~NewFile() {
  if (!is_finished_) ::unlink(path_.c_str());
}

NewFile::NewFile(NewFile&& other) noexcept
    : path_(std::move(other.path_)),
      named_(std::move(other.named_)),
      advanced_(std::move(other.advanced_)),
      file_(std::move(other.file_)),
      blocks_(std::move(other.blocks_)),
      written_(other.written_),
      begun_(other.begun_),
      is_finished_(std::exchange(other.is_finished_, true)) {}

void NewFile::set_mode(mode_t mode) { ::fchmod(file_.get(), mode); }

void NewFile::expect(std::uint64_t bytes) {
  constexpr std::uint64_t kMany = std::uint64_t{32} << 20;
  if (bytes >= kMany) blocks_ = BlockWriter::make(file_.get(), named_, advanced_);
}

void NewFile::write(std::string_view bytes) {
  errno = error_of_next_write.exchange(0);
  if (errno != 0) fail(named_);
  if (blocks_) return blocks_->write(bytes);
  write_all(file_.get(), bytes, named_, advanced_);
  written_ += bytes.size();
  if (written_ - begun_ < kBytesAtOnce) return;
  // The disk has something to do while the next bytes are made.
  ::sync_file_range(file_.get(), static_cast<off64_t>(begun_),
                    static_cast<off64_t>(written_ - begun_), SYNC_FILE_RANGE_WRITE);
  begun_ = written_;
}

void NewFile::finish() {
  if (blocks_) blocks_->finish();
  if (::fsync(file_.get()) != 0) fail(named_);
  if (advanced_) advanced_();
  if (::close(file_.release()) != 0) fail(named_);
  if (advanced_) advanced_();
  is_finished_ = true;
}

void write_all(int descriptor, std::string_view bytes, const std::string& named,
               const std::function<void()>& advanced) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), std::min(bytes.size(), kBytesAtOnce));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(named);
    bytes.remove_prefix(static_cast<std::size_t>(written));
    if (advanced) advanced();
  }
}

void fail_next_write(int error) { error_of_next_write.store(error); }

bool fails_for_any_folder(int error) {
  return error == EMFILE || error == ENFILE || error == ENOMEM || error == EIO;
}

void flush_folder(const std::string& folder) {
  const FileDescriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened && fails_for_any_folder(errno)) fail(folder);
  if (!opened) return;
  if (::fsync(opened.get()) != 0 && errno != EINVAL && errno != ENOTSUP) fail(folder);
}

}  // namespace penstock
