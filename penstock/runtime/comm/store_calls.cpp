#include "penstock/runtime/comm/store_calls.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "penstock/core/error.h"
#include "penstock/core/file_descriptor.h"
#include "penstock/core/refused_call.h"
#include "penstock/core/text.h"

namespace penstock::comm {
namespace {

// result: of a call that makes a descriptor.
bool was_refused(int result) {
  const bool refused = result < 0 && is_refused(errno);
  const FileDescriptor made(result);
  return refused;
}

void require_pipes() {
  std::array<int, 2> ends{-1, -1};
  const int result = pipe2(ends.data(), O_CLOEXEC);
  const int error = errno;
  const FileDescriptor reading(ends[0]), writing(ends[1]);
  if (result < 0 && is_refused(error)) {
    throw CommError(str("torch's store needs the system call pipe2: ", std::strerror(error)));
  }
}

}  // namespace

bool runs_newer_store() {
  require_pipes();
  const int no_socket = -1;
  return !was_refused(eventfd(0, EFD_CLOEXEC)) && !was_refused(epoll_create1(EPOLL_CLOEXEC)) &&
         !was_refused(accept4(no_socket, nullptr, nullptr, SOCK_CLOEXEC));
}

}  // namespace penstock::comm
