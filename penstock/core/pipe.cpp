#include "penstock/core/pipe.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "penstock/core/error.h"
#include "penstock/core/refused_call.h"
#include "penstock/core/text.h"

namespace penstock {
namespace {

using Ends = std::array<int, 2>;

// What goes in at one end comes out at the other, and a reader finds the end: all that is asked.
bool make_of_sockets(Ends& ends) {
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return false;
  ::shutdown(ends[0], SHUT_WR);
  ::shutdown(ends[1], SHUT_RD);
  return true;
}

// The C library's pipe() is the same call.
bool make(Ends& ends) {
  if (::pipe2(ends.data(), O_CLOEXEC) == 0) return true;
  return is_refused(errno) && make_of_sockets(ends);
}

}  // namespace

Pipe make_pipe(std::string_view what) {
  Ends ends{};
  if (!make(ends)) {
    throw ConfigError(str("cannot ", what, ": pipe: ", std::strerror(errno)),
                      {"the limit of open files: ulimit -n"});
  }
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

}  // namespace penstock
