#include "penstock/core/grow_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "penstock/core/refused_call.h"

namespace penstock {
namespace {

int grow_by_writing(int descriptor, std::int64_t size, std::int64_t bytes) {
  const std::vector<char> zeros(std::size_t{1} << 20);
  for (std::int64_t done = 0; done < bytes;) {
    const auto count =
        static_cast<std::size_t>(std::min<std::int64_t>(bytes - done, std::ssize(zeros)));
    const ssize_t written = ::pwrite(descriptor, zeros.data(), count, size + done);
    if (written < 0 && errno != EINTR) return errno;
    if (written > 0) done += written;
  }
  return 0;
}

}  // namespace

int grow_file(int descriptor, std::int64_t size, std::int64_t bytes) {
  int error = EINTR;
  while (error == EINTR) error = ::posix_fallocate(descriptor, size, bytes);
  return is_refused(error) ? grow_by_writing(descriptor, size, bytes) : error;
}

}  // namespace penstock
