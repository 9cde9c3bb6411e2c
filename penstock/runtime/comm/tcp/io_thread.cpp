#include "penstock/runtime/comm/tcp/io_thread.h"

#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "penstock/core/background_thread.h"
#include "penstock/core/error.h"
#include "penstock/core/refused_call.h"
#include "penstock/core/text.h"

namespace penstock::comm::tcp {

IoThread::~IoThread() {
  if (!thread_.joinable()) return;
  stop_->wake();
  thread_.join();
}

void IoThread::add(std::shared_ptr<Stream> stream) {
  const std::lock_guard lock(mutex_);
  const int descriptor = stream->descriptor();
  entries_[descriptor] = {.stream = std::move(stream)};
}

void IoThread::remove(const Stream& stream) {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(stream.descriptor());
  if (entry == entries_.end()) return;
  if (entry->second.is_known) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, entry->first, nullptr);
  entries_.erase(entry);
}

void IoThread::help(const std::shared_ptr<Stream>& stream) {
  if (!stream->is_busy()) return;
  const std::lock_guard lock(mutex_);
  start();
  if (!attended_) arm_if_busy(entries_.at(stream->descriptor()));
}

IoThread::Attending::Attending(IoThread& thread) : thread_(thread) {
  const std::lock_guard lock(thread_.mutex_);
  thread_.attended_ = true;
}

IoThread::Attending::~Attending() {
  const std::lock_guard lock(thread_.mutex_);
  thread_.attended_ = false;
  if (!thread_.thread_.joinable()) return;
  for (auto& [descriptor, entry] : thread_.entries_) thread_.arm_if_busy(entry);
}

namespace {

FileDescriptor make_epoll() {
  FileDescriptor made(epoll_create1(EPOLL_CLOEXEC));
  if (made || !is_refused(errno)) return made;
  made.reset(epoll_create(1));
  if (made) fcntl(made.get(), F_SETFD, FD_CLOEXEC);
  return made;
}

}  // namespace

void IoThread::start() {
  if (thread_.joinable()) return;
  epoll_ = make_epoll();
  stop_.emplace("watch connections");
  const int stop = stop_->descriptor();
  epoll_event event{.events = EPOLLIN, .data = {.fd = stop}};
  if (!epoll_ || epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, stop, &event) != 0) {
    const std::vector<std::string> advice = {"the limit of open files: ulimit -n"};
    const bool is_full = errno == EMFILE || errno == ENFILE || errno == ENOSPC;
    throw CommError(str("cannot watch connections: ", std::strerror(errno)),
                    is_full ? advice : std::vector<std::string>{});
  }
  thread_ = start_background_thread([this] { run(); });
}

// Once, as epoll sees it: the thread arms it again, unless the rank attends by then.
void IoThread::arm_if_busy(Entry& entry) {
  if (entry.is_armed || !entry.stream->is_busy()) return;
  const auto events = static_cast<std::uint32_t>(entry.stream->events()) | EPOLLONESHOT;
  static_assert(EPOLLIN == 1 && EPOLLOUT == 4, "as POLLIN and POLLOUT");
  const int descriptor = entry.stream->descriptor();
  epoll_event event{.events = events, .data = {.fd = descriptor}};
  const int operation = entry.is_known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
  entry.is_armed = entry.is_known = epoll_ctl(epoll_.get(), operation, descriptor, &event) == 0;
}

void IoThread::run() {
  while (true) {
    std::array<epoll_event, 16> ready{};
    const int count = epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), -1);
    if (count < 0 && errno != EINTR) return;
    for (int i = 0; i < count; ++i) {
      const int descriptor = ready[static_cast<std::size_t>(i)].data.fd;
      if (descriptor == stop_->descriptor()) return;
      advance(descriptor);
    }
  }
}

void IoThread::advance(int descriptor) {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(descriptor);
  if (entry == entries_.end()) return;
  entry->second.is_armed = false;
  if (attended_) return;
  entry->second.stream->advance();
  arm_if_busy(entry->second);
}

}  // namespace penstock::comm::tcp
