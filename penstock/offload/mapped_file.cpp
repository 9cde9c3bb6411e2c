#include "penstock/offload/mapped_file.h"

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

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/round_up.h"
#include "penstock/core/text.h"

namespace penstock::offload {
namespace {

// The kernel reads no more than this ahead at a time, whatever it is asked for.
constexpr std::int64_t kReadAtOnce = 128 << 10;

// At a fault it maps what else it has in its cache of an aligned block of so many bytes.
constexpr std::int64_t kMappedAtOnce = 64 << 10;

// Without a name, or with one for a moment where the file system has no other.
int open_unnamed(const std::string& folder) {
  const int file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
  std::string name = folder + "/.penstock-XXXXXX";
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

std::string free_bytes(int file) {
  struct statvfs space{};
  if (::fstatvfs(file, &space) != 0) return "an unknown number of bytes";
  return str(space.f_bavail * space.f_frsize, " bytes");
}

}  // namespace

class MappedFile::Mapping {
 public:
  Mapping(const std::string& what, const std::string& folder, std::int64_t bytes)
      : file_(open_unnamed(folder)), bytes_(bytes) {
    if (file_ < 0) {
      throw ConfigError(str(what, ": cannot make a file in the folder ", in_quotes(folder), ": ",
                            std::strerror(errno)),
                        {"give a folder that is there, and that all ranks may write to"});
    }
    try {
      reserve(what, folder);
      map(what, folder);
    } catch (...) {
      ::close(file_);
      throw;
    }
  }
  ~Mapping() {
    ::munmap(start_, static_cast<std::size_t>(bytes_));
    ::close(file_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  int file() const { return file_; }
  std::int64_t bytes() const { return bytes_; }
  std::byte* at(std::int64_t byte) const { return start_ + byte; }
  // Takes those bytes out of the process's memory, and what was mapped with them.
  void unmap(Bytes bytes) const {
    const auto address = reinterpret_cast<std::intptr_t>(start_);
    const std::int64_t first = (address + bytes.first) / kMappedAtOnce * kMappedAtOnce - address;
    const std::int64_t end = round_up(address + bytes.first + bytes.count, kMappedAtOnce) - address;
    const std::int64_t from = std::max<std::int64_t>(first, 0);
    ::madvise(at(from), static_cast<std::size_t>(std::min(end, bytes_) - from), MADV_DONTNEED);
  }
  std::int64_t place_of(const void* address) const {
    return static_cast<const std::byte*>(address) - start_;
  }

 private:
  void reserve(const std::string& what, const std::string& folder) const {
    int error = EINTR;
    while (error == EINTR) error = ::posix_fallocate(file_, 0, bytes_);
    if (error == 0) return;
    throw ConfigError(str(what, ": the folder ", in_quotes(folder), " has no room for ", bytes_,
                          " bytes: ", std::strerror(error)),
                      {str(free_bytes(file_), " are free there; each rank needs its own")});
  }
  void map(const std::string& what, const std::string& folder) {
    void* const start = ::mmap(nullptr, static_cast<std::size_t>(bytes_), PROT_READ | PROT_WRITE,
                               MAP_SHARED, file_, 0);
    if (start == MAP_FAILED) {
      throw ConfigError(str(what, ": cannot map a file of ", bytes_, " bytes in the folder ",
                            in_quotes(folder), ": ", std::strerror(errno)));
    }
    start_ = static_cast<std::byte*>(start);
  }

  int file_;
  std::int64_t bytes_;
  std::byte* start_ = nullptr;
};

namespace {

// The pages of memory that have some of those bytes.
Bytes pages_of(Bytes bytes, std::int64_t file_bytes) {
  static const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  const std::int64_t first = bytes.first / page * page;
  const std::int64_t end = round_up(bytes.first + bytes.count, page);
  return {.first = first, .count = std::min(end, file_bytes) - first};
}

}  // namespace

// A mapping of no bytes is none.
MappedFile::MappedFile(const std::string& what, const std::string& folder, std::int64_t bytes)
    : what_(what), mapping_(std::make_shared<Mapping>(what, folder, std::max(bytes, kAlignment))) {}

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
  throw Error(str(what_, ": cannot write ", bytes.count,
                  " bytes to the file that they are in: ", std::strerror(errno)));
}

}  // namespace penstock::offload
