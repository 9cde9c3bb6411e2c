#include "penstock/cli/runtime/rank.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "penstock/cli/tokenizer.h"
#include "penstock/comm/communicator.h"
#include "penstock/core/error.h"
#include "penstock/core/exception_text.h"
#include "penstock/core/output.h"
#include "penstock/core/text.h"
#include "penstock/launch/environment.h"
#include "penstock/launch/run_clock.h"
#include "penstock/rank/rank_process.h"
#include "penstock/run/run.h"
#include "penstock/runtime/rank/device.h"
#include "penstock/runtime/rank/presence.h"
#include "penstock/runtime/rank/process_presence.h"
#include "penstock/runtime/train/handshake.h"

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

class RankProcess {
 public:
  RankProcess(const RankStart& start, const RankWork& work) : start_(start), work_(work) {
    std::signal(SIGXFSZ, SIG_IGN);  // A file at its limit is an error of the write.
  }

  int run() {
    try {
      const ExitCode code = meet_and_work();
      presence_.finish();
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
            .faults = start_.faults,
            .start = parse_integer(launch::restart_count(launch::process_variable)).value_or(0) + 1,
            .earlier_seconds = launch::seconds_of_run(launch::from_process_environment(),
                                                      launch::process_variable),
            .stop_requested = rank::stop_requested,
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
    presence_.fail(message, code);
    if (!presence_.has_listener()) messages_.write(str("penstock: ", message, "\n"));
    return static_cast<int>(code);
  }

  const RankStart& start_;
  const RankWork& work_;
  Output results_{STDOUT_FILENO};
  Output messages_{STDERR_FILENO};
  std::unique_ptr<comm::Communicator> communicator_;  // Stays where work fails.
  rank::Presence& presence_ = rank::Presence::begin(rank::Program::OfPenstock);
};

}  // namespace

int run_rank(const RankStart& start, const RankWork& work) {
  return RankProcess(start, work).run();
}

}  // namespace penstock::cli
