#include "penstock/runtime/offload/mapped_file.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/file_descriptor.h"
#include "penstock/core/grow_file.h"
#include "penstock/core/refused_call.h"
#include "penstock/core/round_up.h"
#include "penstock/core/text.h"
#include "penstock/core/unnamed_file.h"

namespace penstock::offload {
namespace {

// The kernel reads no more than this ahead at a time, whatever it is asked for.
constexpr std::int64_t kReadAtOnce = 128 << 10;

// Bytes of an aligned block, of which the kernel maps at a fault what else it has in its cache.
constexpr std::int64_t kMappedAtOnce = 64 << 10;

// Absent, if the file system does not say.
std::optional<std::int64_t> free_bytes(int file) {
  struct statvfs space{};
  if (::fstatvfs(file, &space) != 0) return std::nullopt;
  return static_cast<std::int64_t>(space.f_bavail * space.f_frsize);
}

std::int64_t page_bytes() {
  static const std::int64_t bytes = ::sysconf(_SC_PAGESIZE);
  return bytes;
}

}  // namespace

// A range of addresses, of which the file has the front: tensors stay where they are as it grows.
class MappedFile::Mapping {
 public:
  // Makes room for up to `room` bytes; absent: all that the folder has.
  Mapping(std::string what, std::string folder, std::optional<std::int64_t> room)
      : what_(std::move(what)), folder_(std::move(folder)), file_(open_unnamed(folder_)) {
    if (!file_) {
      throw ConfigError(str(what_, ": cannot make a file in the folder ", quoted_path(folder_),
                            ": ", std::strerror(errno)),
                        {"give a folder that is there, and that all ranks may write to"});
    }
    room_ =
        round_up(std::max(room ? *room : free_bytes(file()).value_or(0), kAlignment), page_bytes());
    void* const start = ::mmap(nullptr, static_cast<std::size_t>(room_), PROT_NONE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) cannot_map(room_, errno);
    start_ = static_cast<std::byte*>(start);
  }
  ~Mapping() { ::munmap(start_, static_cast<std::size_t>(room_)); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  void grow(std::int64_t bytes) {
    const int error = bytes_ + bytes > room_ ? ENOSPC : grow_file(file(), bytes_, bytes);
    if (error != 0) {
      const auto left = free_bytes(file());
      throw ConfigError(str(what_, ": the folder ", quoted_path(folder_), " has no room for ",
                            bytes, " bytes: ", std::strerror(error)),
                        {str(left ? str(*left) : "an unknown number of",
                             " bytes are free there; each rank needs its own")});
    }
    const std::int64_t first = bytes_ / page_bytes() * page_bytes();
    const std::int64_t count = bytes_ + bytes - first;
    map(first, count);
    bytes_ += bytes;
  }

  int file() const { return file_.get(); }
  std::int64_t bytes() const { return bytes_; }
  std::byte* at(std::int64_t byte) const { return start_ + byte; }
  // Takes those bytes out of the process's memory, and what was mapped with them.
  void unmap(Bytes bytes) const {
    const auto address = reinterpret_cast<std::intptr_t>(start_);
    const std::int64_t first = (address + bytes.first) / kMappedAtOnce * kMappedAtOnce - address;
    const std::int64_t end = round_up(address + bytes.first + bytes.count, kMappedAtOnce) - address;
    const std::int64_t from = std::max<std::int64_t>(first, 0);
    const std::int64_t count = std::min(end, bytes_) - from;
    if (::madvise(at(from), static_cast<std::size_t>(count), MADV_DONTNEED) == 0) return;
    if (is_refused(errno)) map(from, count);  // Anew: with none of its pages.
  }
  std::int64_t place_of(const void* address) const {
    return static_cast<const std::byte*>(address) - start_;
  }

 private:
  void map(std::int64_t first, std::int64_t count) const {
    if (::mmap(start_ + first, static_cast<std::size_t>(count), PROT_READ | PROT_WRITE,
               MAP_SHARED | MAP_FIXED, file(), first) == MAP_FAILED) {
      cannot_map(count, errno);
    }
  }
  [[noreturn]] void cannot_map(std::int64_t bytes, int error) const {
    throw ConfigError(str(what_, ": cannot map a file of ", bytes, " bytes in the folder ",
                          quoted_path(folder_), ": ", std::strerror(error)));
  }

  std::string what_;
  std::string folder_;
  FileDescriptor file_;
  std::int64_t room_ = 0;   // Addresses.
  std::int64_t bytes_ = 0;  // Size of the file.
  std::byte* start_ = nullptr;
};

namespace {

// The pages of memory that have some of those bytes.
Bytes pages_of(Bytes bytes, std::int64_t file_bytes) {
  const std::int64_t first = bytes.first / page_bytes() * page_bytes();
  const std::int64_t end = round_up(bytes.first + bytes.count, page_bytes());
  return {.first = first, .count = std::min(end, file_bytes) - first};
}

}  // namespace

MappedFile::MappedFile(const std::string& what, const std::string& folder, std::int64_t bytes)
    : what_(what), mapping_(std::make_shared<Mapping>(what, folder, bytes)) {
  if (bytes > 0) mapping_->grow(bytes);
}

MappedFile::MappedFile(const std::string& what, const std::string& folder)
    : what_(what), mapping_(std::make_shared<Mapping>(what, folder, std::nullopt)) {}

std::int64_t MappedFile::bytes() const { return mapping_->bytes(); }

at::Tensor MappedFile::append(const at::Tensor& like) {
  const std::int64_t first = round_up(bytes(), kAlignment);
  const auto count = static_cast<std::int64_t>(like.nbytes());
  if (count > 0) mapping_->grow(first + count - bytes());
  return tensor(count > 0 ? first : 0, like);
}

at::Tensor MappedFile::tensor(std::int64_t first, const at::Tensor& like) const {
  const at::Tensor form = at::empty_like(like, like.options().device(at::kMeta));
  const std::int64_t bytes = form.numel() * static_cast<std::int64_t>(form.element_size());
  PENSTOCK_CHECK(first >= 0 && first + bytes <= mapping_->bytes(), first, " + ", bytes);
  return at::from_blob(
      mapping_->at(first), form.sizes(), form.strides(), [mapping = mapping_](void*) {},
      like.options().device(at::kCPU).requires_grad(false));
}

Bytes MappedFile::bytes_of(const at::Tensor& tensor) const {
  const Bytes bytes{.first = mapping_->place_of(tensor.const_data_ptr()),
                    .count = static_cast<std::int64_t>(tensor.nbytes())};
  if (bytes.count == 0) return {};
  PENSTOCK_CHECK(bytes.first >= 0 && bytes.first + bytes.count <= mapping_->bytes(), bytes.first,
                 " + ", bytes.count, " of ", mapping_->bytes());
  return bytes;
}

void MappedFile::read_ahead(Bytes bytes) const {
  const Bytes pages = pages_of(bytes, mapping_->bytes());
  for (std::int64_t done = 0; done < pages.count; done += kReadAtOnce) {
    const std::int64_t count = std::min(kReadAtOnce, pages.count - done);
    // Advice: what it does not bring is read when it is used.
    ::madvise(mapping_->at(pages.first + done), static_cast<std::size_t>(count), MADV_WILLNEED);
  }
}

void MappedFile::let_go(Bytes bytes) {
  const Bytes pages = pages_of(bytes, mapping_->bytes());
  if (pages.count == 0) return;
  mapping_->unmap(pages);
  write(pages, SYNC_FILE_RANGE_WRITE);
  if (leaving_.count > 0) {
    write(leaving_,
          SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    ::posix_fadvise(mapping_->file(), leaving_.first, leaving_.count, POSIX_FADV_DONTNEED);
  }
  leaving_ = pages;
}

void MappedFile::write(Bytes bytes, unsigned int flags) const {
  if (::sync_file_range(mapping_->file(), bytes.first, bytes.count, flags) == 0) return;
  const bool waits = (flags & SYNC_FILE_RANGE_WAIT_AFTER) != 0;
  // Instead, what is not waited for is left to the kernel, and else the whole file is.
  if (is_refused(errno) && (!waits || ::fdatasync(mapping_->file()) == 0)) return;
  throw Error(str(what_, ": cannot write ", bytes.count,
                  " bytes to the file that they are in: ", std::strerror(errno)));
}

}  // namespace penstock::offload
