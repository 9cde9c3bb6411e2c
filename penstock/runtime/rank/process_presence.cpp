#include "penstock/runtime/rank/process_presence.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <span>
#include <utility>

#include "penstock/core/exception_text.h"
#include "penstock/core/text.h"
#include "penstock/runtime/execute/progress.h"

namespace penstock::rank {
namespace {

constexpr const char* kOwnCode = "the program's own code";

std::atomic<Presence*> presence{nullptr};

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

// What this process is at, of whatever Progress, and the last step of all.
struct Now {
  std::optional<execute::Position> busy;
  std::int64_t step = 0;
};

Now look() {
  Now now;
  execute::look_at_all([&](std::span<execute::Progress* const> all) {
    for (const execute::Progress* each : all) {
      execute::Position at = each->position();
      now.step = std::max(now.step, at.step);
      if (at.is_busy()) now.busy = std::move(at);
    }
  });
  return now;
}

}  // namespace

Presence::Presence(Program program)
    : process_(::getpid()),
      program_(program),
      signals_(program == Program::OfPenstock ? std::make_unique<launch::StopSignals>() : nullptr),
      control_(launch::ControlClient::from_process_environment(
          /*takes_stop=*/program == Program::OfPenstock)),
      takes_stops_(program == Program::OfPenstock) {
  if (program == Program::OfUser) control_.set_progress([this] { return report_of_user(); });
  if (!control_.connected()) return;
  before_ = std::set_terminate(&Presence::terminate);
  std::atexit(&Presence::at_exit);
}

Presence& Presence::begin(Program program) {
  static std::once_flag once;
  std::call_once(once, [program] { presence.store(new Presence(program)); });
  return *presence.load();
}

Presence* Presence::find() { return presence.load(); }

// Whether this is no child of the process, which shares its channel.
bool Presence::is_here() const { return ::getpid() == process_; }

void Presence::set_phase(const std::string& phase) { control_.set_phase(phase); }

void Presence::show(std::function<launch::ProgressReport()> report) {
  control_.set_progress(std::move(report));
}

void Presence::hide() { control_.set_progress(nullptr); }

void Presence::fail(const std::string& message, ExitCode code) {
  if (!control_.connected() || !is_here()) return;
  launch::ErrorReport error{.message = message, .exit_code = code};
  auto at = look().busy;
  if (!at) at = execute::position_of_failure();
  // A loss that is not finite is the same on every rank, and its message names the step.
  if (at && code != ExitCode::Numerics) {
    const launch::ProgressReport last = report_of(*at);
    error.step = last.step;
    if (last.step) error.instruction = last.doing;
  }
  control_.report_error(error);
}

std::optional<ExitCode> Presence::stop_requested() {
  if (!is_here()) return std::nullopt;
  if (!takes_stops_.exchange(true)) control_.take_stops();
  const auto by_launcher = control_.stop_requested();
  return by_launcher || !signals_ ? by_launcher : signals_->requested();
}

// A rank that does not wait advances, however long it takes.
launch::ProgressReport Presence::report_of_user() {
  const Now now = look();
  launch::ProgressReport report;
  if (now.busy) {
    report = report_of(*now.busy);
  } else {
    report.phase = now.step > 0 ? str(kOwnCode, " after step ", now.step) : kOwnCode;
  }
  const std::lock_guard lock(mutex_);
  if (!report.waiting || report.counter != of_progress_) ++counter_;
  of_progress_ = report.counter;
  report.counter = counter_;
  patience_.measure(report);
  return report;
}

void Presence::terminate() {
  Presence* const here = find();
  if (here != nullptr && std::current_exception()) here->fail(handled_text(), handled_code());
  if (here != nullptr && here->before_ != nullptr) here->before_();
  std::abort();
}

// Says bye: who goes on in this process's place, such as the shell that ran it, is not watched.
void Presence::at_exit() {
  Presence* const here = find();
  if (here != nullptr && here->is_here()) here->control_ = {};
}

}  // namespace penstock::rank
