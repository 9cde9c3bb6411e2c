#include "tests/launch/roles.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <thread>

#include "penstock/launch/control.h"
#include "penstock/launch/environment.h"

namespace penstock::launch {
namespace {

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

[[noreturn]] void leave(int code) {
  std::cout.flush();
  ::_exit(code);
}

// A training loop of a rank: 5 ms a step, in which every rank needs every other.
class Role {
 public:
  explicit Role(std::string name) : name_(std::move(name)) {}

  int run() {
    std::cout << "pid " << ::getpid() << std::endl;
    if (name_ == "start-up") return stuck_in_start_up();
    control_.set_progress([this] { return progress(); });
    for (step_ = 0; step_ < 10'000; ++step_) {
      sleep_ms(5);
      ++counter_;
      if (name_ == "short" && step_ == kFaultStep) break;
      if (name_ == "early end" && step_ == kFaultStep) return 75;
      if (step_ == kFaultStep) fault();
      if (const auto code = control_.stop_requested()) return stop(*code);
    }
    control_.report_done();
    std::cout << "done" << std::endl;
    return 0;
  }

 private:
  ProgressReport progress() const {
    const int peer = waiting_for_.load();
    return {.counter = static_cast<std::uint64_t>(counter_.load()),
            .step = step_.load(),
            .phase = "training",
            .doing = peer < 0 ? "1F3" : "0RECV_B3",
            .waiting = peer >= 0,
            .waiting_for = peer < 0 ? std::nullopt : std::optional(Rank(peer)),
            .waiting_ms = 0};
  }

  int stuck_in_start_up() {
    control_.set_phase(rank_ == faulty_ ? "loading weights" : "connecting");
    for (;;) ::pause();
  }

  int stop(ExitCode code) {
    if (name_ == "failing save" && rank_ == faulty_) {
      control_.report_error({.message = "disk full", .exit_code = ExitCode::Checkpoint});
      return 3;
    }
    std::cout << "saved" << std::endl;
    return static_cast<int>(code);
  }

  void fault() {
    if (name_ == "train" || name_ == "failing save") return;
    if (name_ == "ring") wait_for((rank_ + 1) % 2);
    if (rank_ == faulty_) {
      sleep_ms(400);  // Until the launcher knows what everybody does.
      fail();
    } else if (name_ == "kill and follow" || name_ == "error") {
      follow();
    } else {
      wait_for(faulty_);
    }
  }

  void fail() {
    if (name_ == "kill" || name_ == "kill and follow") ::raise(SIGKILL);
    if (name_ == "crash") crash();
    if (name_ == "stop") ::raise(SIGSTOP);
    if (name_ == "exit") leave(3);
    if (name_ == "garbage") send_garbage();
    if (name_ == "error") {
      control_.report_error({.step = step_.load(),
                             .instruction = "1B3",
                             .message = "loss is nan\n  note: stage 1",
                             .exit_code = ExitCode::Numerics});
      leave(6);
    }
    for (;;) ::pause();  // "hang".
  }

  [[noreturn]] static void crash() {
    ::signal(SIGSEGV, SIG_DFL);  // A sanitizer would report it and exit.
    ::raise(SIGSEGV);
    leave(1);
  }

  // What a rank does whose peer is gone, a little later.
  [[noreturn]] void follow() {
    waiting_for_ = faulty_;
    sleep_ms(450);
    control_.report_error({.step = step_.load(),
                           .instruction = "0RECV_B3",
                           .message = str("lost rank ", faulty_),
                           .exit_code = ExitCode::PeerLost});
    if (name_ == "error") ::raise(SIGABRT);
    leave(4);
  }

  [[noreturn]] void wait_for(int peer) {
    waiting_for_ = peer;
    for (;;) ::pause();
  }

  // On the channel, past the client; then a death, so that the run ends.
  [[noreturn]] void send_garbage() {
    const int fd = std::atoi(process_variable("PENSTOCK_CONTROL_FD")->c_str());
    const std::string zeros(60'000, '\0');
    for (const std::string& text : {std::string("error\t9"), std::string("\xFF\x01"), zeros}) {
      ::send(fd, text.data(), text.size(), 0);
    }
    sleep_ms(100);
    leave(9);
  }

  const std::string name_;
  const int rank_ = from_process_environment().rank.value;
  const int faulty_ = std::atoi(process_variable(kFaultyRankVariable)->c_str());
  ControlClient control_ = ControlClient::from_process_environment();
  std::atomic<int> counter_{0};
  std::atomic<int> step_{0};
  std::atomic<int> waiting_for_{-1};
};

// Runs before GoogleTest's main, so that a rank is a plain program.
const bool kPlayed = [] {
  const auto role = process_variable(kRoleVariable);
  if (!role) return false;
  const int code = Role(*role).run();
  leave(code);
}();

}  // namespace
}  // namespace penstock::launch
