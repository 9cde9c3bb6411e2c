#include "penstock/cli/runtime/rank.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/cli/tokenizer.h"
#include "penstock/comm/communicator.h"
#include "penstock/core/error.h"
#include "penstock/core/exception_text.h"
#include "penstock/core/output.h"
#include "penstock/core/text.h"
#include "penstock/execute/progress.h"
#include "penstock/launch/control.h"
#include "penstock/launch/environment.h"
#include "penstock/launch/run_clock.h"
#include "penstock/launch/stop_signals.h"
#include "penstock/launch/verdict.h"
#include "penstock/rank/device.h"
#include "penstock/rank/peer_watch.h"
#include "penstock/rank/progress_report.h"
#include "penstock/rank/rank_process.h"
#include "penstock/run/run.h"
#include "penstock/train/handshake.h"

namespace penstock::cli {
namespace {

using std::chrono::milliseconds;

milliseconds to_ms(double seconds) {
  return milliseconds(static_cast<std::int64_t>(seconds * 1e3));
}

comm::Transport transport_of(config::Transport transport) {
  switch (transport) {
    case config::Transport::Auto:
      return comm::Transport::Auto;
    case config::Transport::Gloo:
      return comm::Transport::Gloo;
    case config::Transport::Tcp:
      return comm::Transport::Tcp;
    case config::Transport::Shm:
      return comm::Transport::Shm;
  }
  return comm::Transport::Auto;
}

rank::ProcessOptions process_options(const RankStart& start, const config::Config& config,
                                     c10::Device device) {
  return {.host = start.host,
          .folder = config.run.directory,
          .transport = transport_of(config.launch.transport),
          .device = device};
}

// Turns the executor's progress into reports, and remembers the last for an error's sake.
class Reporter {
 public:
  explicit Reporter(const execute::Progress& progress) : progress_(progress) {}

  launch::ProgressReport report() {
    launch::ProgressReport report = rank::report_of(progress_);
    patience_.measure(report);
    return report;
  }

 private:
  const execute::Progress& progress_;
  rank::Patience patience_;
};

// Whoever watches has the deadlines (launcher.h, peer_watch.h), and ends a wait by an interrupt.
constexpr std::chrono::hours kWatched{240};

class RankProcess {
 public:
  RankProcess(const RankStart& start, const RankWork& work)
      : start_(start), work_(work), control_(launch::ControlClient::from_process_environment()) {
    std::signal(SIGXFSZ, SIG_IGN);  // A file at its limit is an error of the write.
  }

  int run() {
    try {
      const ExitCode code = meet_and_work();
      control_.report_done();
      return static_cast<int>(code);
    } catch (...) {
      return fail();
    }
  }

 private:
  ExitCode meet_and_work() {
    // One thread whatever the machine: with more, sums inside kernels split differently and the
    // same run would give other bits on another layout.
    at::set_num_threads(1);
    const config::ReadConfig read = start_.read();
    const config::LaunchConfig& launch = read.config.launch;
    limits_ = {.heartbeat_ms = to_ms(launch.heartbeat_seconds).count(),
               .startup_ms = to_ms(launch.startup_seconds).count(),
               .disk_ms = to_ms(launch.disk_seconds).count()};
    control_.set_phase("meeting the other ranks");
    const auto self = launch::from_process_environment();
    const c10::Device device =
        rank::choose_device(launch.device, self.local_rank.value_or(self.rank.value));
    communicator_ = rank::connect_process(self, process_options(start_, read.config, device),
                                          to_ms(launch.startup_seconds));
    const ExitCode code = work_(read, *communicator_, device, hooks());
    communicator_.reset();
    return code;
  }

  run::RunHooks hooks() {
    return {.results = results_,
            .messages = messages_,
            .watch = [this](const execute::Progress& progress) { watch(progress); },
            .unwatch = [this] { unwatch(); },
            .faults = start_.faults,
            .start = parse_integer(launch::restart_count(launch::process_variable)).value_or(0) + 1,
            .earlier_seconds = launch::seconds_of_run(launch::from_process_environment(),
                                                      launch::process_variable),
            .stop_requested =
                [this] {
                  const auto by_launcher = control_.stop_requested();
                  return by_launcher ? by_launcher : signals_.requested();
                },
            .tokens_of =
                [](const std::string& text, const std::string& folder) {
                  return tokens_of(text, folder,
                                   "leave run.sample_prompt empty: texts go on from the data");
                },
            .text_of =
                [](const std::vector<std::int64_t>& tokens, const std::string& folder) {
                  return text_of(tokens, folder, "samples.jsonl has the tokens");
                }};
  }

  void watch(const execute::Progress& progress) {
    reporter_.emplace(progress);
    const auto report = [this] { return reporter_->report(); };
    if (control_.connected()) {
      control_.set_progress(report);
    } else if (communicator_->world_size() > 1) {
      peers_.emplace(*communicator_, limits_, report);
    }
    communicator_->set_deadline(kWatched);
  }

  void unwatch() {
    // Where an error came from; work after the steps has no instruction.
    if (std::uncaught_exceptions() > 0) last_ = reporter_->report();
    peers_.reset();
    control_.set_progress(nullptr);
    control_.set_phase("ending");
  }

  // The error that is being handled.
  int fail() {
    int code = 0;
    bool all_find_it = false;
    try {
      throw;
    } catch (const train::DifferenceError& error) {
      code = tell(error.what(), error.exit_code());
      all_find_it = true;
    } catch (const Error& error) {
      code = tell(error.what(), error.exit_code());
    } catch (const std::exception& error) {
      code = tell(exception_text(error), ExitCode::Failure);
    }
    results_.finish();
    messages_.finish();
    // All ranks find it, and part in good order.
    if (all_find_it || code == static_cast<int>(ExitCode::Numerics)) return code;
    // To take connections to ranks apart that are stopped, or gone, may be a wait for them.
    ::_exit(code);
  }

  int tell(const std::string& message, ExitCode code) {
    launch::ErrorReport report{.message = message, .exit_code = code};
    // A loss that is not finite is the same on every rank, and its message names the step.
    if (last_ && code != ExitCode::Numerics) {
      report.step = last_->step;
      if (last_->step) report.instruction = last_->doing;
    }
    control_.report_error(report);
    if (!control_.connected()) messages_.write(str("penstock: ", message, "\n"));
    return static_cast<int>(code);
  }

  const RankStart& start_;
  const RankWork& work_;
  launch::StopSignals signals_;
  Output results_{STDOUT_FILENO};
  Output messages_{STDERR_FILENO};
  launch::Limits limits_;
  std::unique_ptr<comm::Communicator> communicator_;
  std::optional<Reporter> reporter_;
  std::optional<rank::PeerWatch> peers_;
  std::optional<launch::ProgressReport> last_;
  launch::ControlClient control_;
};

}  // namespace

int run_rank(const RankStart& start, const RankWork& work) {
  return RankProcess(start, work).run();
}

}  // namespace penstock::cli
