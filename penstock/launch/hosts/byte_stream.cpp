#include "penstock/launch/hosts/byte_stream.h"

#include <unistd.h>

#include <array>
#include <cerrno>

namespace penstock::hosts {
namespace {

// Limit on one read, so that all are served.
constexpr std::size_t kReadBytesMax = std::size_t{1} << 18;

bool would_wait() { return errno == EAGAIN || errno == EWOULDBLOCK; }

}  // namespace

bool read_available(int fd, std::string& into) {
  std::array<char, 65536> buffer;
  std::size_t taken = 0;
  while (taken < kReadBytesMax) {
    const ssize_t size = ::read(fd, buffer.data(), buffer.size());
    if (size > 0) {
      into.append(buffer.data(), static_cast<std::size_t>(size));
      taken += static_cast<std::size_t>(size);
    } else if (size == 0 || (errno != EINTR && !would_wait())) {
      return false;
    } else if (errno != EINTR) {
      return true;
    }
  }
  return true;
}

bool write_available(int fd, std::string& waiting) {
  std::size_t written = 0;
  bool is_open = true;
  while (written < waiting.size()) {
    const ssize_t size = ::write(fd, waiting.data() + written, waiting.size() - written);
    if (size >= 0) {
      written += static_cast<std::size_t>(size);
    } else if (errno != EINTR) {
      is_open = would_wait();
      break;
    }
  }
  waiting.erase(0, written);
  return is_open;
}

}  // namespace penstock::hosts
