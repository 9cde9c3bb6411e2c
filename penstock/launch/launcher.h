// Starts the ranks of one run on this machine, watches them, and says why a run failed.
//
// Used by cli/ (`penstock train --nproc`, `penstock launch -- any program`).  Knows processes and
// the control channel (control.h), not what the ranks compute.  verdict.h decides, this acts.
//
// A rank gets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT,
// OMP_NUM_THREADS (its share of the cores, unless set), and, for penstock's own programs,
// PENSTOCK_CONTROL_FD, PENSTOCK_HEARTBEAT_SECONDS, PENSTOCK_JOB_ID, and on rank 0, when asked for,
// PENSTOCK_STORE_FD: a socket that already listens on MASTER_PORT.  Its standard input
// is /dev/null.
//
// How a run ends:
//   - A rank fails, is silent, or nobody advances: one root cause (verdict.h); the others get the
//     abort message, then SIGTERM, then SIGKILL, all within grace_seconds.
//   - Ctrl-C or SIGTERM (or SIGHUP, SIGUSR1): ranks with a channel are told to stop after their
//   step, others
//     get the signal and heartbeat_seconds to end.  A second signal kills all at once.
//   - kill -9 of the launcher: the kernel kills every rank, the guard (guard.h) their children.
//   - A signal that came before, to a StopSignals of this process (stop_signals.h): the same.
// A rank's process group ends with the rank, so its children do not outlive it.
// Thread safety: one launch at a time in a process, because of the signal handlers.
#pragma once
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/launch/process.h"
#include "penstock/launch/ranks.h"

namespace penstock::launch {

inline constexpr int kRanksMax = 4096;
// Limit on every time in LaunchOptions; all are above 0.
inline constexpr double kSecondsMax = 1e9;

// Who listens on MASTER_PORT.
enum class StoreSocket : std::uint8_t {
  Program,   // The program binds it itself; the port was free a moment ago.
  Launcher,  // The launcher has it already and hands it to rank 0 as PENSTOCK_STORE_FD.
};

// Whether the ranks must say hello on their control channel.
enum class ControlChannel : std::uint8_t {
  Optional,  // Any program; one that never says hello is watched for exits and signals only.
  Required,  // penstock's own: a rank that is not heard of within startup_seconds hangs.
};

// The place of a rank's words, without a log_dir.
enum class RankStreams : std::uint8_t {
  Inherited,  // This process's own.
  Piped,      // Pipes that this process reads (RankProcesses::streams).
};

struct LaunchOptions {
  int nproc = 1;                       // Ranks, in [1, kRanksMax].
  std::vector<std::string> program{};  // argv of every rank; without a '/', looked up in PATH.
  // The place of "--local_rank=N" in `program`, as DeepSpeed's launcher says it; absent: nowhere.
  std::optional<std::size_t> local_rank_word{};
  int first_rank = 0;    // First of this machine's; others are elsewhere.
  int world_size = 0;    // 0: nproc.
  std::string job_id{};  // Empty: a new one.
  RankStreams streams = RankStreams::Inherited;
  // Added to this process's variables, before the ranks' own; a later one replaces an earlier one.
  std::vector<std::pair<std::string, std::string>> environment{};
  std::string log_dir{};  // Rank R writes to log_dir/rank-R.log; empty: to this process's output.
  // Silence of a rank, or time without progress while all are in a step.
  double heartbeat_seconds = 30;
  double startup_seconds = 300;    // Time without progress outside a step: start-up, the end.
  double disk_seconds = 1800;      // Time without progress while a rank uses files.
  double grace_seconds = 3;        // Time from the abort message to SIGKILL.
  std::string host = "127.0.0.1";  // MASTER_ADDR.
  std::uint16_t master_port = 0;   // 0: a free one.
  StoreSocket store_socket = StoreSocket::Program;
  ControlChannel channel = ControlChannel::Optional;
  // Hears of Ctrl-C until another signal stops the run; empty: Ctrl-C stops it, too.
  std::function<void()> interrupted{};
  // What is said of a run that was asked to stop; empty: nothing.
  std::string stop_note = "the same command starts it again, from the first step";
  std::ostream* messages = nullptr;  // What a user should see while it happens, and the summary.
};

struct LaunchResult {
  int exit_code = 0;       // Exit code of the run: docs/exit_codes.md, or the program's own.
  std::string root_cause;  // Empty when every rank exited 0.
  std::vector<std::string> notes;
  std::vector<Ending> endings;  // Endings by rank.
  bool stop_asked = false;      // A signal came that asks a run to stop, at any time until now.
};

// Runs all ranks to their end.
// Throws ConfigError, and leaves nothing running, when they cannot be started: options out of
// range, port taken, program not executable, log_dir not writable, no more processes.
LaunchResult launch(const LaunchOptions& options);

// The same for ranks that are started by other means, and seen in `seen`, which is new.
LaunchResult watch(const LaunchOptions& options, Ranks& ranks, Observation& seen);

// "penstock: <root cause>", then a line "  note: ..." per note; "" when every rank exited 0.
std::string summary(const LaunchResult& result);

}  // namespace penstock::launch
