#include "penstock/runtime/comm/shm/liveness.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "penstock/core/process_stat.h"

namespace penstock::comm::shm {

Liveness::Liveness(std::int32_t process)
    : process_(process), pidfd_(static_cast<int>(syscall(SYS_pidfd_open, process, 0))) {
  if (pidfd_) return;
  ended_ = errno == ESRCH;
  if (const auto stat = process_stat(process)) start_ = stat->start;
}

bool Liveness::alive() const {
  if (pidfd_) {
    pollfd ended{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
    poll(&ended, 1, 0);  // Fails at a signal, which says nothing about the process.
    return (ended.revents & POLLIN) == 0;
  }
  if (ended_ || start_.empty()) return !ended_;
  const auto stat = process_stat(process_);
  return stat && stat->start == start_ && !stat->has_ended();
}

}  // namespace penstock::comm::shm
