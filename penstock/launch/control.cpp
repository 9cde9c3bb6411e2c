#include "penstock/launch/control.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "penstock/core/background_thread.h"
#include "penstock/core/check.h"
#include "penstock/core/file_descriptor.h"
#include "penstock/core/text.h"
#include "penstock/core/wake_up.h"

namespace penstock::launch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kPeerLost = static_cast<int>(ExitCode::PeerLost);

milliseconds heartbeat_interval(double heartbeat_seconds) {
  const double seconds = std::clamp(heartbeat_seconds / 5, 0.01, 1.0);
  return milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

bool send_now(int fd, const std::string& line) {
  return ::send(fd, line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

void send_within(int fd, const std::string& line, milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  while (!send_now(fd, line) && (errno == EAGAIN || errno == EINTR)) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return;
    pollfd writable{fd, POLLOUT, 0};
    ::poll(&writable, 1, static_cast<int>(left.count()));
  }
}

// An unclaimed end of a control channel.  A client marks its descriptor close-on-exec, which the
// launcher left clear, so the mark also says that the channel is taken.
bool is_free_channel(int fd) {
  const int flags = ::fcntl(fd, F_GETFD);
  if (flags < 0 || (flags & FD_CLOEXEC) != 0) return false;
  int domain = 0;
  int type = 0;
  socklen_t size = sizeof domain;
  return ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX &&
         ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
}

void set_close_on_exec(int fd, bool on) { ::fcntl(fd, F_SETFD, on ? FD_CLOEXEC : 0); }

}  // namespace

struct ControlClient::State {
  explicit State(const ControlOptions& options)
      : fd(options.fd), interval(heartbeat_interval(options.heartbeat_seconds)) {
    set_close_on_exec(fd, true);
    send_now(fd, encode(Hello{.takes_stop = options.takes_stop}));
    thread = start_background_thread([this] { run(); });
  }

  ~State() {
    stopping.store(true);
    wake_up.wake();
    thread.join();
    send_now(fd, encode(Bye{}));
    set_close_on_exec(fd, false);
  }

  void run() {
    auto next_beat = Clock::now();
    while (!stopping.load()) {
      const auto now = Clock::now();
      if (now >= next_beat) {
        send_now(fd, encode(current_progress()));
        next_beat = now + interval;
      }
      wait_until(next_beat);
    }
  }

  void wait_until(Clock::time_point next_beat) {
    const auto left = std::chrono::ceil<milliseconds>(next_beat - Clock::now());
    std::array<pollfd, 2> ready{pollfd{fd, POLLIN, 0}, pollfd{wake_up.descriptor(), POLLIN, 0}};
    ::poll(ready.data(), ready.size(), static_cast<int>(std::max<std::int64_t>(0, left.count())));
    if (ready[0].revents != 0) receive();
  }

  void receive() {
    std::array<char, kMessageBytesMax> buffer;
    const ssize_t size = ::recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (size <= 0) ::_exit(kPeerLost);  // The launcher is gone: nobody would end this rank.
    const auto message =
        parse_launcher_message(std::string_view(buffer.data(), static_cast<std::size_t>(size)));
    if (!message) return;
    if (const auto* stop = std::get_if<Stop>(&*message)) {
      stop_code.store(static_cast<int>(stop->exit_code), std::memory_order_relaxed);
    } else {
      ::_exit(kPeerLost);  // Exits without a word: the launcher tells the story.
    }
  }

  ProgressReport current_progress() {
    const std::lock_guard lock(mutex);
    if (!progress) return phase_report;
    try {
      return progress();
    } catch (...) {
      ProgressReport failed;
      failed.phase = "unknown: the progress callback failed";
      return failed;
    }
  }

  const int fd;
  const milliseconds interval;
  WakeUp wake_up{"send heartbeats"};
  std::atomic<bool> stopping{false};
  std::atomic<int> stop_code{0};
  std::mutex mutex;  // Guards the two below.
  std::function<ProgressReport()> progress;
  ProgressReport phase_report{.phase = "starting"};
  std::thread thread;
};

ControlClient::ControlClient() = default;
ControlClient::ControlClient(const ControlOptions& options) {
  PENSTOCK_CHECK(is_free_channel(options.fd), "fd ", options.fd);
  state_ = std::make_unique<State>(options);
}
ControlClient::ControlClient(ControlClient&&) noexcept = default;
ControlClient& ControlClient::operator=(ControlClient&&) noexcept = default;
ControlClient::~ControlClient() = default;

ControlClient ControlClient::from_process_environment(bool takes_stop) {
  return from_environment(process_variable, takes_stop);
}

ControlClient ControlClient::from_environment(const VariableLookup& variable, bool takes_stop) {
  const auto fd = parse_integer(variable("PENSTOCK_CONTROL_FD").value_or(""));
  if (!fd || *fd < 0 || *fd > 1'000'000 || !is_free_channel(static_cast<int>(*fd))) return {};
  ControlOptions options{.fd = static_cast<int>(*fd), .takes_stop = takes_stop};
  const std::string heartbeat = variable("PENSTOCK_HEARTBEAT_SECONDS").value_or("");
  const double seconds = std::strtod(heartbeat.c_str(), nullptr);
  if (seconds > 0) options.heartbeat_seconds = seconds;
  return ControlClient(options);
}

void ControlClient::set_progress(std::function<ProgressReport()> progress) {
  if (!state_) return;
  const std::lock_guard lock(state_->mutex);
  state_->progress = std::move(progress);
}

void ControlClient::set_phase(const std::string& phase) {
  if (!state_) return;
  const std::lock_guard lock(state_->mutex);
  state_->phase_report.phase = phase;
  ++state_->phase_report.counter;
}

std::optional<ExitCode> ControlClient::stop_requested() const {
  const int code = state_ ? state_->stop_code.load(std::memory_order_relaxed) : 0;
  return code == 0 ? std::nullopt : std::optional(static_cast<ExitCode>(code));
}

void ControlClient::take_stops() {
  if (state_) send_within(state_->fd, encode(Hello{}), milliseconds(1000));
}

void ControlClient::report_error(const ErrorReport& report) {
  if (state_) send_within(state_->fd, encode(report), milliseconds(1000));
}

void ControlClient::report_done() {
  if (state_) send_within(state_->fd, encode(Done{}), milliseconds(1000));
}

}  // namespace penstock::launch
