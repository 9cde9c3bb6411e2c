#include "penstock/launch/guard.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "penstock/core/blocked_signals.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/launch/close_descriptors.h"

namespace penstock::launch {
namespace {

using Groups = std::array<pid_t, kGuardedGroupsMax>;  // 0: a free place.

void replace(Groups& groups, pid_t from, pid_t to) {
  for (pid_t& group : groups) {
    if (group != from) continue;
    group = to;
    return;
  }
}

// Async-signal-safe calls only: the launcher may have threads.
[[noreturn]] void run_guard(int channel) {
  ::setsid();
  ::prctl(PR_SET_NAME, "penstock-guard");
  close_all_but(channel);  // No pipe of the launcher's terminal or log stays open here.
  Groups groups{};
  pid_t group = 0;
  for (;;) {
    const ssize_t size = ::read(channel, &group, sizeof group);
    if (size < 0 && errno == EINTR) continue;
    if (size != sizeof group) break;
    if (group > 0) replace(groups, 0, group);
    if (group < 0) replace(groups, -group, 0);
  }
  for (const pid_t left : groups) {
    if (left > 0) ::kill(-left, SIGKILL);
  }
  ::_exit(0);
}

[[noreturn]] void throw_cannot_start(const char* what) {
  throw ConfigError(str("cannot start the launcher: ", what, ": ", std::strerror(errno)));
}

}  // namespace

Guard::Guard() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    throw_cannot_start("socketpair");
  const FileDescriptor guard_end(ends[0]);
  channel_.reset(ends[1]);
  const BlockedSignals blocked;  // They stay so in the guard: only SIGKILL ends it.
  pid_ = ::fork();
  if (pid_ == 0) run_guard(guard_end.get());
  if (pid_ < 0) throw_cannot_start("fork");
}

Guard::~Guard() {
  channel_.reset();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

// Should someone have killed the guard, the launcher goes on without it.
void Guard::watch(pid_t group) {
  while (::send(channel_.get(), &group, sizeof group, MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

void Guard::forget(pid_t group) { watch(-group); }

}  // namespace penstock::launch
