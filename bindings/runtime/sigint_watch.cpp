#include "bindings/runtime/sigint_watch.h"

#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <deque>
#include <mutex>
#include <vector>

#include "penstock/core/background_thread.h"
#include "penstock/core/text.h"

namespace penstock::bindings {
namespace {

// What the handler may touch.
struct {
  std::atomic<int> event{-1};
  // Process of the thread that reads the event: threads survive no fork.
  std::atomic<pid_t> process{0};
  std::atomic<std::uint32_t> signals{0};
  std::atomic<const struct sigaction*> before{nullptr};
} g_signal;

struct {
  std::mutex mutex;
  std::vector<comm::Communicator*> communicators;  // One for each watch.
  std::deque<struct sigaction> handlers;  // Handlers before ours; a late signal may use any.
} g_watched;

void on_sigint(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  g_signal.signals.fetch_add(1);
  if (g_signal.process.load() == getpid()) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = write(g_signal.event.load(), &one, sizeof one);
  }
  errno = error;
  const struct sigaction* before = g_signal.before.load();
  if ((before->sa_flags & SA_SIGINFO) != 0) {
    before->sa_sigaction(signal, info, context);
  } else {
    before->sa_handler(signal);
  }
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_sigint;
}

bool is_by_default(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) == 0 &&
         (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN);
}

void watch(int event) {
  std::uint64_t count = 0;
  while (read(event, &count, sizeof count) == sizeof count) {
    const std::lock_guard lock(g_watched.mutex);
    for (comm::Communicator* communicator : g_watched.communicators) {
      communicator->fail(str("rank ", communicator->rank(), " was interrupted (Ctrl-C)"));
    }
  }
}

void start_thread() {
  if (g_signal.process.load() == getpid()) return;
  const int event = eventfd(0, EFD_CLOEXEC);
  start_detached_thread([event] { watch(event); });
  g_signal.event.store(event);
  g_signal.process.store(getpid());
}

// Handles SIGINT before `now` does, which is not ours.
void install_before(const struct sigaction& now) {
  const auto is_same = [&](const struct sigaction& other) {
    return other.sa_flags == now.sa_flags && other.sa_handler == now.sa_handler;
  };
  auto known = std::ranges::find_if(g_watched.handlers, is_same);
  if (known == g_watched.handlers.end()) {
    known = g_watched.handlers.insert(g_watched.handlers.end(), now);
  }
  g_signal.before.store(&*known);
  struct sigaction ours = now;
  ours.sa_flags |= SA_SIGINFO;
  ours.sa_sigaction = on_sigint;
  sigaction(SIGINT, &ours, nullptr);
}

}  // namespace

SigintWatch::SigintWatch(comm::Communicator& communicator) {
  if (syscall(SYS_gettid) != getpid()) return;
  const std::lock_guard lock(g_watched.mutex);
  struct sigaction now = {};
  sigaction(SIGINT, nullptr, &now);
  if (is_by_default(now)) return;
  start_thread();
  // Somebody may have installed another handler since the outer watch began.
  if (!is_ours(now)) install_before(now);
  g_watched.communicators.push_back(&communicator);
  watched_ = &communicator;
  signals_before_ = g_signal.signals.load();
}

SigintWatch::~SigintWatch() {
  if (watched_ == nullptr) return;
  const std::lock_guard lock(g_watched.mutex);
  auto& watched = g_watched.communicators;
  watched.erase(std::ranges::find(watched, watched_));
  if (!watched.empty()) return;
  struct sigaction now = {};
  sigaction(SIGINT, nullptr, &now);
  if (is_ours(now)) sigaction(SIGINT, g_signal.before.load(), nullptr);
}

bool SigintWatch::interrupted() const {
  return watched_ != nullptr && g_signal.signals.load() != signals_before_;
}

}  // namespace penstock::bindings
