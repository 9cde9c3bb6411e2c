#include "penstock/launch/speaker.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace penstock::launch {

void name_senders(int channel) {
  const int on = 1;
  ::setsockopt(channel, SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
}

std::optional<Spoken> receive(int channel, std::size_t bytes_max) {
  Spoken spoken;
  spoken.line.resize(bytes_max + 1);
  iovec text{spoken.line.data(), spoken.line.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(ucred))> control{};
  msghdr message{};
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t size = ::recvmsg(channel, &message, MSG_DONTWAIT);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  spoken.line.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr;
       each = CMSG_NXTHDR(&message, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_CREDENTIALS) continue;
    ucred sender{};
    std::memcpy(&sender, CMSG_DATA(each), sizeof sender);
    spoken.pid = sender.pid;
  }
  return spoken;
}

void Speaker::is(pid_t pid) {
  if (pid == pid_) return;
  pid_ = pid;
  pidfd_ = FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  was_gone_ = !pidfd_ && errno == ESRCH;
}

bool Speaker::has_ended() const {
  if (!pidfd_) return was_gone_;
  pollfd ended{pidfd_.get(), POLLIN, 0};
  return ::poll(&ended, 1, 0) > 0;
}

}  // namespace penstock::launch
