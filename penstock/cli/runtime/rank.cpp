#include "penstock/cli/runtime/rank.h"

#include <ATen/Parallel.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>

#include "penstock/comm/communicator.h"
#include "penstock/comm/exception_text.h"
#include "penstock/comm/own_address.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/execute/progress.h"
#include "penstock/launch/control.h"
#include "penstock/launch/environment.h"
#include "penstock/launch/port.h"
#include "penstock/lower/plan.h"
#include "penstock/train/device.h"
#include "penstock/train/run.h"

namespace penstock::cli {
namespace {

using Clock = std::chrono::steady_clock;
using launch::LauncherKind;
using std::chrono::milliseconds;

milliseconds to_ms(double seconds) {
  return milliseconds(static_cast<std::int64_t>(seconds * 1e3));
}

// Which start of the job this is: a restarted or requeued one keeps its id, and what the last start
// left in a store or a rendezvous file is not for this one.
std::string start_number() {
  for (const char* name : {"TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"}) {
    if (const auto count = launch::process_variable(name)) return *count;
  }
  return "0";
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

// Where rank 0's store listens.  Not on c10d's own socket, which listens on every address of this
// host, but where others may know this host by any of them.
int store_socket(const std::string& address, std::uint16_t port) {
  if (const auto socket = launch::process_variable("PENSTOCK_STORE_FD")) {
    return static_cast<int>(parse_integer(*socket).value_or(-1));
  }
  const bool is_ipv4 = !address.empty() && address.find(':') == std::string::npos;
  return is_ipv4 ? launch::listen_on(address, port).socket.release() : -1;
}

comm::Rendezvous rendezvous_of(const launch::LauncherEnvironment& self, const TrainCommand& command,
                               const config::Config& config, c10::Device device) {
  launch::check_single_address(command.host);
  comm::Rendezvous rendezvous{.kind = comm::Rendezvous::Kind::Client,
                              .host = self.master_addr,
                              .port = self.master_port.value_or(0),
                              .prefix = start_number(),
                              .rank = self.rank,
                              .world_size = self.world_size,
                              .listen = command.host,
                              .transport = transport_of(config.launch.transport),
                              .device = device};
  if (self.kind == LauncherKind::None || !self.master_port) {
    rendezvous.kind = comm::Rendezvous::Kind::File;
    rendezvous.path = str(config.run.directory, "/rendezvous-", self.job_id, "-", start_number());
  } else if (self.rank.value == 0 && !self.agent_store) {
    rendezvous.kind = comm::Rendezvous::Kind::Server;
    rendezvous.socket = store_socket(
        command.host.empty() ? comm::own_address_named(self.master_addr) : command.host,
        rendezvous.port);
  }
  return rendezvous;
}

// Turns the executor's progress into reports, and remembers the last for an error's sake.
class Reporter {
 public:
  explicit Reporter(const execute::Progress& progress) : progress_(progress) {}

  launch::ProgressReport report() {
    launch::ProgressReport report{
        .counter = static_cast<std::uint64_t>(progress_.counter.load(std::memory_order_relaxed)),
        .step = progress_.step.load(std::memory_order_relaxed),
        .phase = "training",
        .doing = progress_.phase.load(std::memory_order_relaxed),
        .waiting = progress_.waiting.load(std::memory_order_relaxed)};
    const lower::Plan* plan = progress_.plan.load(std::memory_order_acquire);
    const auto index = progress_.instruction.load(std::memory_order_relaxed);
    if (plan != nullptr && index >= 0 && index < std::ssize(plan->instructions)) {
      const auto& instruction = plan->instructions[static_cast<std::size_t>(index)];
      report.doing = schedule::to_string(instruction.action);
      if (report.waiting) report.waiting_for = instruction.peer;
    }
    report.waiting_ms = waited_ms(report);
    return report;
  }

 private:
  std::int64_t waited_ms(const launch::ProgressReport& report) {
    const auto now = Clock::now();
    if (!report.waiting || report.counter != counter_) since_ = now;
    counter_ = report.counter;
    return std::chrono::duration_cast<milliseconds>(now - since_).count();
  }

  const execute::Progress& progress_;
  std::uint64_t counter_ = 0;
  Clock::time_point since_ = Clock::now();
};

class RankProcess {
 public:
  explicit RankProcess(const TrainCommand& command)
      : command_(command), control_(launch::ControlClient::from_process_environment()) {}

  int run() {
    try {
      const ExitCode code = train();
      control_.report_done();
      return static_cast<int>(code);
    } catch (const Error& error) {
      return fail(error.what(), error.exit_code());
    } catch (const std::exception& error) {
      return fail(comm::exception_text(error), ExitCode::Failure);
    }
  }

 private:
  ExitCode train() {
    // One thread whatever the machine: with more, sums inside kernels split differently and the
    // same run would give other bits on another layout.
    at::set_num_threads(1);
    const config::ReadConfig read = read_config_of(command_);
    const config::LaunchConfig& launch = read.config.launch;
    control_.set_phase("meeting the other ranks");
    const auto self = launch::from_process_environment();
    const c10::Device device =
        train::choose_device(launch.device, self.local_rank.value_or(self.rank.value));
    const auto communicator = comm::connect(rendezvous_of(self, command_, read.config, device),
                                            to_ms(launch.startup_seconds));
    // With a launcher that watches, its heartbeat speaks first: it knows more than a timeout.
    communicator->set_deadline(to_ms(launch.heartbeat_seconds * (control_.connected() ? 2 : 1) +
                                     (control_.connected() ? 5 : 0)));
    return train::run(read, *communicator, device, hooks());
  }

  train::RunHooks hooks() {
    return {.phase = [this](const std::string& phase) { control_.set_phase(phase); },
            .watch =
                [this](const execute::Progress& progress) {
                  reporter_.emplace(progress);
                  control_.set_progress([this] { return reporter_->report(); });
                },
            .unwatch =
                [this] {
                  // Where an error came from; work after the steps has no instruction.
                  if (std::uncaught_exceptions() > 0) last_ = reporter_->report();
                  control_.set_progress(nullptr);
                  control_.set_phase("after training");
                },
            .stop_requested = [this] { return control_.stop_requested(); }};
  }

  int fail(const std::string& message, ExitCode code) {
    launch::ErrorReport report{.message = message, .exit_code = code};
    // A loss that is not finite is the same on every rank, and its message names the step.
    if (last_ && code != ExitCode::Numerics) {
      report.step = last_->step;
      report.instruction = last_->doing;
    }
    control_.report_error(report);
    if (!control_.connected()) std::fprintf(stderr, "penstock: %s\n", message.c_str());
    return static_cast<int>(code);
  }

  const TrainCommand& command_;
  launch::ControlClient control_;
  std::optional<Reporter> reporter_;
  std::optional<launch::ProgressReport> last_;
};

}  // namespace

int run_rank(const TrainCommand& command) { return RankProcess(command).run(); }

}  // namespace penstock::cli
