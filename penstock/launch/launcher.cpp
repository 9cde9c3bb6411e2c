#include "penstock/launch/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <ostream>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/launch/control_message.h"
#include "penstock/launch/guard.h"
#include "penstock/launch/port.h"
#include "penstock/launch/program.h"
#include "penstock/launch/rank_environment.h"
#include "penstock/launch/signals.h"
#include "penstock/launch/verdict.h"

namespace penstock::launch {
namespace {

static_assert(kRanksMax <= static_cast<int>(kGuardedGroupsMax));

constexpr int kTickMs = 100;
constexpr int kTickWithoutPidfdMs = 20;
constexpr std::int64_t kSettleMs = 300;  // For reports that explain a first failure.
constexpr std::int64_t kSameSignalMs =
    200;                                  // A terminal and a wrapper may both pass one Ctrl-C on.
constexpr std::int64_t kPausedMs = 1000;  // A longer tick: this process was itself stopped.
constexpr std::int64_t kUnkillableMs = 5000;
constexpr int kMessagesPerTick = 64;  // Of one rank: none keeps the others from being heard.

std::int64_t to_ms(double seconds) { return std::llround(seconds * 1000); }

void check(const LaunchOptions& options) {
  if (options.nproc < 1 || options.nproc > kRanksMax) {
    throw ConfigError(str("nproc ", options.nproc, ": must be from 1 to ", kRanksMax));
  }
  if (options.program.empty()) throw ConfigError("no program to launch");
  const std::pair<const char*, double> limits[] = {{"heartbeat_seconds", options.heartbeat_seconds},
                                                   {"startup_seconds", options.startup_seconds},
                                                   {"grace_seconds", options.grace_seconds}};
  for (const auto& [name, value] : limits) {
    if (!(value > 0 && value <= 1e9)) throw ConfigError(str(name, " ", value, ": must be above 0"));
  }
}

// A rank's pipes must not get the numbers 0, 1 or 2, which start_process replaces.
void open_standard_descriptors() {
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
}

FileDescriptor open_log(const std::string& directory, int rank) {
  if (directory.empty()) return {};
  std::error_code ignored;
  std::filesystem::create_directories(directory, ignored);
  const std::string path = str(directory, "/rank-", rank, ".log");
  FileDescriptor log(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644));
  if (!log) throw ConfigError(str("cannot write ", path, ": ", std::strerror(errno)));
  return log;
}

// Launcher's end, rank's end.
std::pair<FileDescriptor, FileDescriptor> make_channel() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    throw ConfigError(str("cannot start a rank: socketpair: ", std::strerror(errno)),
                      {"the limit of open files: ulimit -n"});
  }
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

// One launch, from the first process to the last.
class Launch {
 public:
  explicit Launch(const LaunchOptions& options) : options_(options) {
    seen_.limits = {to_ms(options.heartbeat_seconds), to_ms(options.startup_seconds)};
    seen_.process_state = process_state;
    oom_kills_before_ = oom_kills();
  }

  // Only reached with ranks alive when something threw.
  ~Launch() {
    for (std::size_t rank = 0; rank < channels_.size(); ++rank) {
      if (alive(rank)) kill_and_reap(rank);
    }
  }

  LaunchResult run() {
    start_all();
    while (alive_count_ > 0 && !given_up_) {
      wait_for_event();
      hear_all();
      reap_ended();
      take_signals();
      ending_started_ ? escalate() : judge();
    }
    return result();
  }

 private:
  std::size_t ranks() const { return processes_.size(); }
  RankRecord& record(std::size_t rank) { return seen_.ranks[rank]; }
  bool alive(std::size_t rank) const { return !seen_.ranks[rank].ending; }
  std::int64_t now_ms() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() -
                                                                 start_)
        .count();
  }

  void say(const std::string& text) const {
    if (options_.messages != nullptr) *options_.messages << "penstock: " << text << std::endl;
  }

  // --- Starting ---------------------------------------------------------------------------------

  void start_all() {
    const char* path = std::getenv("PATH");
    const std::string program = resolve_program(options_.program[0], path == nullptr ? "" : path);
    Port port = options_.store_socket == StoreSocket::Launcher
                    ? listen_on(options_.host, options_.master_port)
                    : reserve_port(options_.host, options_.master_port);
    if (options_.store_socket == StoreSocket::Program) port.socket.reset();
    const std::string job_id = make_job_id();
    for (int rank = 0; rank < options_.nproc; ++rank) {
      RankVariables own{.rank = rank, .master_port = port.number, .job_id = job_id};
      if (rank == 0 && port.socket) own.store_fd = port.socket.get();
      start(program, own);
    }
  }

  void start(const std::string& program, RankVariables& own) {
    auto [launcher_end, rank_end] = make_channel();
    const FileDescriptor log = open_log(options_.log_dir, own.rank);
    own.control_fd = rank_end.get();
    ProcessOptions process{.path = program,
                           .arguments = options_.program,
                           .environment = rank_environment(inherited_, options_, own),
                           .inherited = {own.control_fd},
                           .output = log.get()};
    if (own.store_fd) process.inherited.push_back(*own.store_fd);
    processes_.push_back(start_process(process));
    guard_.watch(processes_.back().pid);
    channels_.push_back(std::move(launcher_end));
    seen_.ranks.emplace_back();
    seen_.ranks.back().pid = processes_.back().pid;
    ++alive_count_;
  }

  // --- Listening --------------------------------------------------------------------------------

  void wait_for_event() {
    std::vector<pollfd> wanted{{signals_.fd(), POLLIN, 0}};
    int timeout_ms = kTickMs;
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      if (channels_[rank]) wanted.push_back({channels_[rank].get(), POLLIN, 0});
      if (!alive(rank)) continue;
      if (processes_[rank].pidfd) {
        wanted.push_back({processes_[rank].pidfd.get(), POLLIN, 0});
      } else {
        timeout_ms = kTickWithoutPidfdMs;
      }
    }
    ::poll(wanted.data(), wanted.size(), timeout_ms);
    const std::int64_t before = seen_.now_ms;
    seen_.now_ms = now_ms();
    if (seen_.now_ms - before > kPausedMs) forgive_silence();
  }

  // While this process was stopped, nobody was heard and nobody is to blame.
  void forgive_silence() {
    for (RankRecord& rank : seen_.ranks) rank.heard_ms = rank.advanced_ms = seen_.now_ms;
  }

  void hear_all() {
    for (std::size_t rank = 0; rank < ranks(); ++rank) hear(rank);
  }

  void hear(std::size_t rank) {
    for (int i = 0; i < kMessagesPerTick && channels_[rank]; ++i) {
      std::array<char, kMessageBytesMax> buffer;
      const ssize_t size =
          ::recv(channels_[rank].get(), buffer.data(), buffer.size(), MSG_DONTWAIT | MSG_TRUNC);
      if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (size <= 0) {
        channels_[rank].reset();
      } else {
        hear_message(rank, {buffer.data(), std::min(buffer.size(), static_cast<std::size_t>(size))},
                     static_cast<std::size_t>(size));
      }
    }
  }

  void hear_message(std::size_t rank, std::string_view line, std::size_t full_size) {
    const auto message =
        line.size() == full_size ? parse_rank_message(line) : std::optional<RankMessage>();
    if (!message) {
      ++record(rank).unreadable;
      return;
    }
    enter_message(record(rank), *message, seen_.now_ms);
    // A rank that starts to listen after the stop was announced must hear of it.
    if (std::holds_alternative<Hello>(*message) && seen_.stop_signal) send_stop(rank);
  }

  void reap_ended() {
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      if (!alive(rank) || !has_ended(processes_[rank].pid)) continue;
      hear_all();  // Whatever was said before this death is older than it.
      const Ending ending = kill_and_reap(rank);
      record(rank).ending = ending;
      record(rank).ending_ms = now_ms();
      --alive_count_;
    }
  }

  // The group first, while its number still cannot be another's.
  Ending kill_and_reap(std::size_t rank) {
    signal_group(processes_[rank].pid, SIGKILL);
    guard_.forget(processes_[rank].pid);
    processes_[rank].pidfd.reset();
    return reap(processes_[rank].pid);
  }

  // --- Stopping on request ----------------------------------------------------------------------

  void take_signals() {
    while (const auto signal = signals_.take()) {
      if (!seen_.stop_signal && !ending_started_) {
        stop_after_step(*signal);
      } else if (seen_.stop_signal != *signal || seen_.now_ms - stop_ms_ > kSameSignalMs) {
        kill_now(*signal);
      }
    }
  }

  ExitCode stop_code() const {
    return seen_.stop_signal == SIGINT ? ExitCode::Interrupted : ExitCode::Preempted;
  }

  void stop_after_step(int signal) {
    seen_.stop_signal = signal;
    stop_ms_ = seen_.now_ms;
    say(str(signal_name(signal), ": stopping after the current step; once more to stop at once"));
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      if (alive(rank)) send_stop(rank);
    }
  }

  void send_stop(std::size_t rank) {
    if (record(rank).answers()) {
      send(rank, Stop{stop_code()});
    } else {
      signal_group(processes_[rank].pid, *seen_.stop_signal);
    }
  }

  void kill_now(int signal) {
    say(str(signal_name(signal), ": stopping at once"));
    if (!seen_.stop_signal) seen_.stop_signal = signal;
    if (!ending_started_) {
      verdict_ = Verdict{.root_cause = str("stopped at once by ", signal_name(signal)),
                         .exit_code = static_cast<int>(stop_code())};
      ending_started_ = true;
    }
    kill_all();
  }

  // Programs without the channel get heartbeat_seconds; the others are held to the hang rules.
  bool stop_overdue() const {
    if (!seen_.stop_signal || seen_.now_ms - stop_ms_ < seen_.limits.heartbeat_ms) return false;
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      if (alive(rank) && !seen_.ranks[rank].answers()) return true;
    }
    return false;
  }

  // --- Judging and ending -----------------------------------------------------------------------

  void judge() {
    if (const auto failed_ms = first_failure_ms(seen_)) {
      if (alive_count_ == 0 || seen_.now_ms - *failed_ms >= kSettleMs) {
        begin_ending(*find_failure(seen_));
      }
    } else if (auto hang = find_hang(seen_)) {
      if (seen_.stop_signal) hang->exit_code = static_cast<int>(stop_code());
      begin_ending(std::move(*hang));
    } else if (stop_overdue()) {
      begin_ending({.root_cause = str("ranks did not stop within ", options_.heartbeat_seconds,
                                      " s of ", signal_name(*seen_.stop_signal)),
                    .exit_code = static_cast<int>(stop_code())});
    }
  }

  void begin_ending(Verdict verdict) {
    verdict_ = std::move(verdict);
    add_memory_note();
    ending_started_ = true;
    ending_ms_ = now_ms();
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      if (!alive(rank)) continue;
      if (record(rank).answers()) {
        send(rank, Abort{verdict_->root_cause});
      } else {
        signal_group(processes_[rank].pid, SIGTERM);
      }
      signal_group(processes_[rank].pid, SIGCONT);  // A stopped rank acts on neither.
    }
  }

  void add_memory_note() {
    const RankRecord* root = verdict_->rank ? &seen_.ranks[verdict_->rank->index()] : nullptr;
    if (root == nullptr || root->ending != Ending{Ending::Kind::Signalled, SIGKILL}) return;
    const std::int64_t kills = oom_kills().value_or(0) - oom_kills_before_.value_or(0);
    if (kills <= 0) return;
    verdict_->notes.insert(verdict_->notes.begin(),
                           str("the kernel ran out of memory meanwhile: oom_kill +", kills,
                               "; fewer or smaller microbatches in flight need less"));
  }

  // Ranks with a channel had their word first; those that are left get SIGTERM, then SIGKILL.
  void escalate() {
    const std::int64_t since_ms = seen_.now_ms - ending_ms_;
    const std::int64_t grace_ms = to_ms(options_.grace_seconds);
    if (!killed_ && since_ms >= grace_ms) {
      kill_all();
    } else if (!terminated_ && since_ms >= grace_ms / 3) {
      signal_all(SIGTERM);
      terminated_ = true;
    }
    given_up_ = killed_ && seen_.now_ms - killed_ms_ > kUnkillableMs;
  }

  void kill_all() {
    terminated_ = killed_ = true;
    killed_ms_ = now_ms();
    signal_all(SIGKILL);
  }

  void signal_all(int signal) {
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      if (alive(rank)) signal_group(processes_[rank].pid, signal);
    }
  }

  void send(std::size_t rank, const LauncherMessage& message) {
    if (!channels_[rank]) return;
    const std::string line = encode(message);
    ::send(channels_[rank].get(), line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  // --- The result -------------------------------------------------------------------------------

  LaunchResult result() {
    LaunchResult result;
    if (verdict_) {
      result = {verdict_->exit_code, verdict_->root_cause, verdict_->notes, {}};
      add_ending_notes(result);
    } else {
      finish_quietly(result);
    }
    for (const RankRecord& rank : seen_.ranks) result.endings.push_back(*rank.ending);
    if (options_.messages != nullptr) *options_.messages << summary(result) << std::flush;
    return result;
  }

  // No rank failed: all exited 0, or stopped early in good order.
  void finish_quietly(LaunchResult& result) const {
    if (seen_.stop_signal) {
      result.exit_code = static_cast<int>(stop_code());
      result.root_cause = str("stopped by ", signal_name(*seen_.stop_signal));
      result.notes = {"run the same command again to go on"};
      return;
    }
    for (const RankRecord& rank : seen_.ranks) {
      if (rank.ending->value != 0) result.exit_code = rank.ending->value;
    }
    if (result.exit_code != 0) result.root_cause = "stopped before the last step";
  }

  void add_ending_notes(LaunchResult& result) {
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      if (alive(rank)) {
        result.notes.push_back(str("rank ", rank, " (process ", processes_[rank].pid, ") ",
                                   describe_process_state(process_state(processes_[rank].pid)),
                                   " and cannot be killed; left behind"));
        record(rank).ending = Ending{Ending::Kind::Signalled, SIGKILL};
      }
      if (record(rank).unreadable > 0) {
        result.notes.push_back(str("rank ", rank, " sent ", record(rank).unreadable,
                                   " unreadable messages on its control channel"));
      }
    }
    if (!options_.log_dir.empty() && verdict_->rank) {
      result.notes.push_back(str("output: ", options_.log_dir, "/rank-", *verdict_->rank, ".log"));
    }
    const std::string others = describe_other_endings(seen_.ranks, verdict_->rank);
    if (!others.empty()) result.notes.push_back(others);
  }

  const LaunchOptions& options_;
  const std::vector<std::string> inherited_ = process_environment();
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  SignalPipe signals_;
  Guard guard_;
  std::vector<Process> processes_;  // By rank, as the two below.
  std::vector<FileDescriptor> channels_;
  Observation seen_;
  std::size_t alive_count_ = 0;
  std::optional<std::int64_t> oom_kills_before_;
  std::int64_t stop_ms_ = 0;
  std::optional<Verdict> verdict_;  // Fixed once the ending starts.
  bool ending_started_ = false;
  bool terminated_ = false;
  bool killed_ = false;
  bool given_up_ = false;
  std::int64_t ending_ms_ = 0;
  std::int64_t killed_ms_ = 0;
};

}  // namespace

LaunchResult launch(const LaunchOptions& options) {
  check(options);
  open_standard_descriptors();
  return Launch(options).run();
}

std::string summary(const LaunchResult& result) {
  if (result.root_cause.empty()) return "";
  return str("penstock: ", Error(result.root_cause, result.notes).what(), "\n");
}

}  // namespace penstock::launch
