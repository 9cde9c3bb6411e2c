#include "bindings/runtime/sigint_watch.h"

#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <thread>

#include "penstock/core/text.h"

namespace penstock::bindings {
namespace {

// What the handler may touch.
struct {
  std::atomic<int> event{-1};
  std::atomic<bool> interrupted{false};
  struct sigaction before = {};
} g_signal;

// The communicator whose waits end, for the thread that waits for the handler's word.
struct {
  std::mutex mutex;
  comm::Communicator* communicator = nullptr;
  pid_t process = 0;  // Threads do not survive a fork.
} g_watched;

void on_sigint(int signal, siginfo_t* info, void* context) {
  g_signal.interrupted.store(true);
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(g_signal.event.load(), &one, sizeof one);
  if ((g_signal.before.sa_flags & SA_SIGINFO) != 0) {
    g_signal.before.sa_sigaction(signal, info, context);
  } else {
    g_signal.before.sa_handler(signal);
  }
}

void watch(int event) {
  std::uint64_t count = 0;
  while (read(event, &count, sizeof count) == sizeof count) {
    const std::lock_guard lock(g_watched.mutex);
    if (g_watched.communicator == nullptr) continue;
    g_watched.communicator->fail(
        str("rank ", g_watched.communicator->rank(), " was interrupted (Ctrl-C)"));
  }
}

void start_thread() {
  if (g_watched.process == getpid()) return;
  g_watched.process = getpid();
  const int event = eventfd(0, EFD_CLOEXEC);
  g_signal.event.store(event);
  std::thread(watch, event).detach();
}

void set_watched(comm::Communicator* communicator) {
  const std::lock_guard lock(g_watched.mutex);
  g_watched.communicator = communicator;
}

}  // namespace

SigintWatch::SigintWatch(comm::Communicator& communicator) {
  if (syscall(SYS_gettid) != getpid()) return;
  sigaction(SIGINT, nullptr, &g_signal.before);
  const bool by_default =
      (g_signal.before.sa_flags & SA_SIGINFO) == 0 &&
      (g_signal.before.sa_handler == SIG_DFL || g_signal.before.sa_handler == SIG_IGN);
  if (by_default) return;
  start_thread();
  g_signal.interrupted.store(false);
  set_watched(&communicator);
  struct sigaction ours = g_signal.before;
  ours.sa_flags |= SA_SIGINFO;
  ours.sa_sigaction = on_sigint;
  sigaction(SIGINT, &ours, nullptr);
  active_ = true;
}

SigintWatch::~SigintWatch() {
  if (!active_) return;
  sigaction(SIGINT, &g_signal.before, nullptr);
  set_watched(nullptr);
}

bool SigintWatch::interrupted() const { return active_ && g_signal.interrupted.load(); }

}  // namespace penstock::bindings
