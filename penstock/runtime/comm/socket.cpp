#include "penstock/runtime/comm/socket.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "penstock/core/error.h"
#include "penstock/core/refused_call.h"
#include "penstock/core/text.h"

namespace penstock::comm {
namespace {

FileDescriptor open_socket(const addrinfo& address) {
  return FileDescriptor(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

}  // namespace

LookUp look_up_host(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  return {.found = Address(error == 0 ? found : nullptr), .error = error};
}

Address resolve(const std::string& host, const std::string& port) {
  return look_up_host(host, port).found;
}

std::string digits_of(const addrinfo& address) {
  return digits_of(address.ai_addr, address.ai_addrlen);
}

std::string digits_of(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST] = {};
  if (getnameinfo(address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return text;
}

Listening listen_at(const std::string& host) {
  const Address found = resolve(host, "0");
  if (!found) throw CommError(str("cannot resolve \"", host, "\""));
  FileDescriptor socket = open_socket(*found);
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  char port[NI_MAXSERV] = {};
  if (bind(socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      listen(socket.get(), SOMAXCONN) != 0 ||
      getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&bound), size, nullptr, 0, port, sizeof port,
                  NI_NUMERICSERV) != 0) {
    throw CommError(str("cannot listen on \"", host, "\": ", std::strerror(errno)));
  }
  return {std::move(socket), port};
}

FileDescriptor accept_at(const FileDescriptor& listening) {
  FileDescriptor socket(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket || !is_refused(errno)) return socket;
  socket.reset(accept(listening.get(), nullptr, nullptr));
  if (!socket) return socket;
  fcntl(socket.get(), F_SETFD, FD_CLOEXEC);
  make_nonblocking(socket.get());
  return socket;
}

FileDescriptor begin_connect(const addrinfo& address) {
  FileDescriptor socket = open_socket(address);
  if (!socket) return socket;
  // A connect that a signal has interrupted goes on by itself, as one in progress does.
  if (connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0) return socket;
  if (errno == EINPROGRESS || errno == EINTR) return socket;
  const int error = errno;
  socket.reset();
  errno = error;
  return socket;
}

int connect_error(const FileDescriptor& socket) {
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error;
}

int ms_left(std::chrono::steady_clock::time_point end) {
  const auto left = end - std::chrono::steady_clock::now();
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<std::int64_t>(ms, 0, 1'000'000'000));
}

}  // namespace penstock::comm
