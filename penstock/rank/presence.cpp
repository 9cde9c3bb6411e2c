#include "penstock/rank/presence.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <span>

#include "penstock/core/exception_text.h"
#include "penstock/core/text.h"
#include "penstock/execute/progress.h"
#include "penstock/launch/control.h"
#include "penstock/rank/progress_report.h"

namespace penstock::rank {
namespace {

constexpr const char* kOwnCode = "the program's own code";

// The exit code of what is being handled.
ExitCode handled_code() {
  try {
    throw;
  } catch (const Error& error) {
    return error.exit_code();
  } catch (...) {
    return ExitCode::Failure;
  }
}

bool is_busy(const execute::Progress& progress) {
  return progress.waiting.load(std::memory_order_relaxed) ||
         progress.instruction.load(std::memory_order_relaxed) >= 0 ||
         progress.doing.load(std::memory_order_relaxed) != nullptr;
}

class Presence {
 public:
  Presence() : control_(launch::ControlClient::from_process_environment(/*takes_stop=*/false)) {
    control_.set_progress([this] { return report(); });
    if (!control_.connected()) return;
    before_ = std::set_terminate(&Presence::terminate);
    std::atexit(&Presence::at_exit);
  }

  bool has_listener() const { return control_.connected(); }

  // Says bye: who goes on in this process's place, such as the shell that ran it, is not watched.
  void end() {
    if (is_here()) control_ = {};
  }

  void fail(const std::string& message, ExitCode code) {
    if (!control_.connected() || !is_here()) return;
    const launch::ProgressReport last = report();
    launch::ErrorReport error{.step = last.step, .message = message, .exit_code = code};
    if (error.step) error.instruction = last.doing;
    control_.report_error(error);
  }

  std::optional<ExitCode> stop_requested() {
    if (!is_here()) return std::nullopt;
    if (!takes_stops_.exchange(true)) control_.take_stops();
    return control_.stop_requested();
  }

 private:
  // Whether this is no child of the process, which shares its channel.
  bool is_here() const { return ::getpid() == process_; }

  // A rank that does not wait advances, however long it takes.
  launch::ProgressReport report() {
    launch::ProgressReport report;
    std::int64_t step = 0;
    execute::look_at_all([&](std::span<execute::Progress* const> all) {
      for (const execute::Progress* each : all) {
        if (is_busy(*each)) report = report_of(*each);
        step = std::max(step, each->step.load(std::memory_order_relaxed));
      }
    });
    if (report == launch::ProgressReport()) {
      report.phase = step > 0 ? str(kOwnCode, " after step ", step) : kOwnCode;
    }
    const std::lock_guard lock(mutex_);
    if (!report.waiting || report.counter != of_progress_) ++counter_;
    of_progress_ = report.counter;
    report.counter = counter_;
    patience_.measure(report);
    return report;
  }

  [[noreturn]] static void terminate();
  static void at_exit();

  const pid_t process_ = ::getpid();
  launch::ControlClient control_;
  std::terminate_handler before_ = nullptr;
  std::atomic<bool> takes_stops_{false};
  std::mutex mutex_;  // Guards the next three.
  std::uint64_t counter_ = 0;
  std::uint64_t of_progress_ = 0;  // Its counter, in the last report.
  Patience patience_;
};

// Never ends: its thread tells of this process until the last.
std::atomic<Presence*> presence{nullptr};

void Presence::terminate() {
  Presence* const here = presence.load();
  if (here != nullptr && std::current_exception()) here->fail(handled_text(), handled_code());
  if (here != nullptr && here->before_ != nullptr) here->before_();
  std::abort();
}

void Presence::at_exit() {
  if (Presence* const here = presence.load()) here->end();
}

}  // namespace

bool begin_presence() {
  static std::once_flag once;
  std::call_once(once, [] { presence.store(new Presence); });
  return presence.load()->has_listener();
}

void report_failure(const std::string& message, ExitCode code) {
  if (Presence* const here = presence.load()) here->fail(message, code);
}

std::optional<ExitCode> stop_requested() {
  Presence* const here = presence.load();
  return here == nullptr ? std::nullopt : here->stop_requested();
}

}  // namespace penstock::rank
