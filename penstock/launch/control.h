// A rank's side of the launcher's control channel: heartbeats out, abort and stop in.
//
// Made once by the program of a rank (cli/, train/); the launcher's side is launcher.h.  It
// outlives every store and process group, so a dead or stopped rank 0 is reported like any other.
// Does not know plans or tensors: what the rank is doing comes from a callback.
//
//   auto control = ControlClient::from_process_environment();  // Null without our launcher.
//   control.set_phase("loading weights");
//   control.set_progress([&] { return executor.progress(); });  // Reads relaxed atomics.
//   for (...) {
//     trainer.step();
//     if (const auto code = control.stop_requested()) { save(); return *code; }
//   }
//   control.set_progress({});  // Before the executor goes.
//   control.report_done();
// and where errors end: control.report_error({...}); the launcher prints it, the rank does not.
// When another rank has failed, or the launcher is gone, the process ends at once with exit code 4
// and without a word: the launcher tells the story.
//
// Wire: AF_UNIX SOCK_SEQPACKET, so a message (control_message.h) arrives whole or not at all.
// Thread safety: every method may be called from any thread, the constructors and destructor not.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "penstock/core/error.h"
#include "penstock/launch/control_message.h"
#include "penstock/launch/environment.h"

namespace penstock::launch {

struct ControlOptions {
  int fd = -1;  // The rank's end; borrowed, not closed: the channel is the process's.
  double heartbeat_seconds = 30;
  bool takes_stop = true;  // Somebody asks stop_requested(): else a signal asks the rank to stop.
};

class ControlClient {
 public:
  // A null client: nothing listens, every method does nothing.
  ControlClient();
  // Says hello and starts the heartbeat thread.  REQUIRES: options.fd is a control channel.
  explicit ControlClient(const ControlOptions& options);
  ControlClient(ControlClient&&) noexcept;
  ControlClient& operator=(ControlClient&&) noexcept;
  // Says bye: a process that goes on without its client is watched for its exit only.
  ~ControlClient();

  // The channel named by PENSTOCK_CONTROL_FD; a null client when the variable is absent, or left
  // over from a parent, or when another client of this process has the channel.
  static ControlClient from_process_environment(bool takes_stop = true);
  static ControlClient from_environment(const VariableLookup& variable, bool takes_stop = true);

  bool connected() const { return state_ != nullptr; }

  // `progress` is called by the heartbeat thread, every min(1 s, heartbeat / 5), until replaced;
  // after set_progress returns, the old one is not running.  A callback that blocks is silence.
  // REQUIRES: what `progress` refers to outlives it; set_progress({}) removes it.
  void set_progress(std::function<ProgressReport()> progress);
  // Names the phase while there is no callback yet, and counts as progress.
  void set_phase(const std::string& phase);

  // The code to exit with once the current step is finished and saved; nothing: go on.
  // One relaxed load.
  std::optional<ExitCode> stop_requested() const;
  // Tells the launcher that somebody asks that: a signal stops the rank no more.
  void take_stops();

  // Waits up to 1 s for room in the channel, and is then lost: the exit code still tells.
  void report_error(const ErrorReport& report);
  // The last step is finished and saved: the process ends, or the client goes, within the
  // launcher's startup_seconds.
  void report_done();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock::launch
