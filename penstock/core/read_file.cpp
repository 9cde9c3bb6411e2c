#include "penstock/core/read_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock {
namespace {

class Reading {
 public:
  Reading(std::string_view what, const std::string& path)
      : title_(str(what, " ", json_quote(path))),
        descriptor_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
    if (descriptor_ < 0) fail_with_errno();
  }
  ~Reading() { ::close(descriptor_); }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

  std::string run(std::size_t bytes_max) {
    std::string text;
    std::vector<char> block(std::size_t{1} << 16);
    while (const std::size_t count = read_some(block)) {
      if (is_device_without_end()) fail("is a device, which never ends");
      text.append(block.data(), count);
      if (text.size() > bytes_max) fail(str("larger than ", bytes_max, " bytes"));
    }
    if (text.empty() && is_pipe()) fail("cannot be read: a pipe that nobody writes to");
    return text;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw ConfigError(str(title_, ": ", why));
  }
  [[noreturn]] void fail_with_errno() const { fail(str("cannot be read: ", std::strerror(errno))); }

  // 0 at the end.
  std::size_t read_some(std::vector<char>& block) const {
    while (true) {
      const ssize_t count = ::read(descriptor_, block.data(), block.size());
      if (count >= 0) return static_cast<std::size_t>(count);
      if (errno == EAGAIN) {
        pollfd ready{.fd = descriptor_, .events = POLLIN, .revents = 0};
        ::poll(&ready, 1, -1);
      } else if (errno != EINTR) {
        fail_with_errno();
      }
    }
  }

  bool is_pipe() const { return S_ISFIFO(mode()); }
  // True of /dev/zero; a terminal ends where its user says so.
  bool is_device_without_end() const { return S_ISCHR(mode()) && ::isatty(descriptor_) == 0; }

  mode_t mode() const {
    struct stat status = {};
    return ::fstat(descriptor_, &status) == 0 ? status.st_mode : 0;
  }

  std::string title_;
  int descriptor_;
};

}  // namespace

std::string read_file(std::string_view what, const std::string& path, std::size_t bytes_max) {
  return Reading(what, path).run(bytes_max);
}

}  // namespace penstock
