#include "penstock/core/read_at.h"

#include <unistd.h>

#include <cerrno>

namespace penstock {

ReadAt read_at(int descriptor, std::int64_t offset, std::span<std::byte> to) {
  ReadAt read;
  while (read.bytes < to.size()) {
    const ssize_t count = ::pread(descriptor, to.data() + read.bytes, to.size() - read.bytes,
                                  offset + static_cast<std::int64_t>(read.bytes));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) read.error = errno;
    if (count <= 0) return read;
    read.bytes += static_cast<std::size_t>(count);
  }
  return read;
}

}  // namespace penstock
