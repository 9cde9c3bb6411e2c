// This process as its launcher knows it: the one connection through which all of it speaks.
//
// presence.h has it for programs of users' own, cli/ begins it for the ranks of penstock's own
// commands, and watch.h shows it what these are at.  Knows no models.
// Thread safety: any thread may call what is no constructor.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "penstock/core/error.h"
#include "penstock/launch/control.h"
#include "penstock/launch/stop_signals.h"
#include "penstock/runtime/rank/progress_report.h"

namespace penstock::rank {

enum class Program : std::uint8_t {
  OfUser,      // Its own code takes as long as it takes, and a signal stops it until it asks.
  OfPenstock,  // It stops itself, and has to advance in whatever phase it is.
};

class Presence {
 public:
  // Begins with the first call, and never ends: it tells of this process until the last.
  static Presence& begin(Program program);
  // Null where it has not begun.
  static Presence* find();
  Presence(const Presence&) = delete;
  Presence& operator=(const Presence&) = delete;

  Program program() const { return program_; }
  // Whether a launcher listens.
  bool has_listener() const { return control_.connected(); }

  // What a rank of penstock's own is at: a phase, or what `report` says until hide().
  void set_phase(const std::string& phase);
  void show(std::function<launch::ProgressReport()> report);
  void hide();

  // Tells why this process is about to end, with the position that the failure has left.
  void fail(const std::string& message, ExitCode code);
  // Tells that the work is finished.
  void finish() { control_.report_done(); }
  // Answers rank::stop_requested(); a signal asks a rank of penstock's own, too.
  std::optional<ExitCode> stop_requested();

 private:
  explicit Presence(Program program);
  [[noreturn]] static void terminate();
  static void at_exit();
  bool is_here() const;
  launch::ProgressReport report_of_user();

  const pid_t process_;
  const Program program_;
  const std::unique_ptr<launch::StopSignals> signals_;  // Null in a program of a user's own.
  launch::ControlClient control_;
  std::terminate_handler before_ = nullptr;
  std::atomic<bool> takes_stops_;
  std::mutex mutex_;  // Guards the next three.
  std::uint64_t counter_ = 0;
  std::uint64_t of_progress_ = 0;  // Its counter, in the last report.
  Patience patience_;
};

}  // namespace penstock::rank
