#include "penstock/launch/signals.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/pipe.h"

namespace penstock::launch {
namespace {

// A handler has no other way to its pipe.
std::atomic<int> handler_fd{-1};

void write_signal(int signal) {
  const int saved = errno;
  const auto byte = static_cast<unsigned char>(signal);
  [[maybe_unused]] const ssize_t written = ::write(handler_fd.load(), &byte, 1);
  errno = saved;
}

}  // namespace

SignalPipe::SignalPipe() {
  Pipe pipe = make_pipe("start the launcher");
  read_end_ = std::move(pipe.reading);
  write_end_ = std::move(pipe.writing);
  for (const FileDescriptor* each : {&read_end_, &write_end_}) make_nonblocking(each->get());
  const int before = handler_fd.exchange(write_end_.get());
  PENSTOCK_CHECK(before == -1, "two launches at a time in one process");
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) install(signal, write_signal);
  install(SIGCHLD, SIG_DFL);
}

SignalPipe::~SignalPipe() {
  restore();
  handler_fd.store(-1);
}

void SignalPipe::restore() {
  for (const Saved& saved : saved_) ::sigaction(saved.signal, &saved.action, nullptr);
  saved_.clear();
}

void SignalPipe::install(int signal, void (*handler)(int)) {
  Saved saved{signal, {}};
  ::sigaction(signal, nullptr, &saved.action);
  if (handler != SIG_DFL && saved.action.sa_handler == SIG_IGN) return;
  struct sigaction action{};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigaction(signal, &action, nullptr);
  saved_.push_back(saved);
}

std::optional<int> SignalPipe::take() {
  unsigned char byte = 0;
  if (::read(read_end_.get(), &byte, 1) != 1) return std::nullopt;
  return byte;
}

}  // namespace penstock::launch
