#include "penstock/launch/launcher.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <ostream>
#include <set>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/launch/guard.h"
#include "penstock/launch/rank_processes.h"
#include "penstock/launch/signals.h"
#include "penstock/launch/stop_signals.h"
#include "penstock/launch/verdict.h"

namespace penstock::launch {
namespace {

static_assert(kRanksMax <= static_cast<int>(kGuardedGroupsMax));

// A terminal and a wrapper may both pass one Ctrl-C on.
constexpr std::int64_t kSameSignalMs = 200;
// A longer tick: this process was itself stopped.
constexpr std::int64_t kPausedMs = 1000;
constexpr std::int64_t kUnkillableMs = 5000;

std::int64_t to_ms(double seconds) { return std::llround(seconds * 1000); }

void check(const LaunchOptions& options) {
  if (options.nproc < 1 || options.nproc > kRanksMax) {
    throw ConfigError(str("nproc ", options.nproc, ": must be from 1 to ", kRanksMax));
  }
  if (options.program.empty()) throw ConfigError("no program to launch");
  const std::pair<const char*, double> limits[] = {{"heartbeat_seconds", options.heartbeat_seconds},
                                                   {"startup_seconds", options.startup_seconds},
                                                   {"disk_seconds", options.disk_seconds},
                                                   {"grace_seconds", options.grace_seconds}};
  for (const auto& [name, value] : limits) {
    if (value > 0 && value <= kSecondsMax) continue;
    throw ConfigError(str(name, " ", value, ": must be above 0 and at most ", kSecondsMax));
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

// One launch, from the first process to the last.
class Launch {
 public:
  Launch(const LaunchOptions& options, Ranks& ranks, Observation& seen)
      : options_(options),
        grace_ms_(to_ms(options.grace_seconds)),
        oom_kills_before_(oom_kills()),
        seen_(seen),
        processes_(ranks) {
    seen_.limits = {to_ms(options.heartbeat_seconds), to_ms(options.startup_seconds),
                    to_ms(options.disk_seconds)};
    seen_.must_report = seen_.is_own = options.channel == ControlChannel::Required;
    seen_.process_state = process_state;
  }

  LaunchResult run() {
    processes_.start_all();
    if (const auto signal = StopSignals::noted()) {
      was_asked_ = true;
      stop_after_step(*signal);
    }
    while (processes_.alive_count() > 0) {
      processes_.wait({{signals_.fd(), POLLIN, 0}});
      advance_clock();
      processes_.hear();
      processes_.bury();
      take_signals();
      announce_stop();
      ending_started_ ? escalate() : judge();
    }
    signals_.restore();
    while (signals_.take()) was_asked_ = true;
    return result();
  }

 private:
  std::size_t ranks() const { return seen_.ranks.size(); }

  void advance_clock() {
    const auto since_start = std::chrono::steady_clock::now() - start_;
    const std::int64_t before = seen_.now_ms;
    seen_.now_ms = std::chrono::duration_cast<std::chrono::milliseconds>(since_start).count();
    if (seen_.now_ms - before > kPausedMs) forgive_silence();
  }

  // While this process was stopped, nobody was heard and nobody is to blame.
  void forgive_silence() {
    for (RankRecord& rank : seen_.ranks) rank.heard_ms = rank.advanced_ms = seen_.now_ms;
  }

  void say(const std::string& text) const {
    if (options_.messages != nullptr) *options_.messages << "penstock: " << text << std::endl;
  }

  // --- Stopping on request ----------------------------------------------------------------------

  void take_signals() {
    while (const auto signal = signals_.take()) {
      if (*signal == SIGINT && options_.interrupted && !seen_.stop_signal) {
        options_.interrupted();
        continue;
      }
      was_asked_ = true;
      if (!seen_.stop_signal && !ending_started_) {
        stop_after_step(*signal);
      } else if (seen_.stop_signal != *signal || seen_.now_ms - stop_ms_ > kSameSignalMs) {
        stop_at_once(*signal);
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
      if (!hears_of_stop(rank)) processes_.signal(rank, signal);
    }
  }

  // Ranks run one program: where one of them stops itself, those that listen are about to.
  bool hears_of_stop(std::size_t rank) const {
    return seen_.ranks[rank].answers() &&
           std::ranges::any_of(seen_.ranks, &RankRecord::stops_itself);
  }

  // Tells the ranks to stop, also one that begins to listen later.
  void announce_stop() {
    if (!seen_.stop_signal) return;
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      if (!hears_of_stop(rank) || !knows_of_stop_.insert(rank).second) continue;
      processes_.send(rank, Stop{stop_code()});
    }
  }

  void stop_at_once(int signal) {
    say(str(signal_name(signal), ": stopping at once"));
    if (!ending_started_) {
      verdict_ = Verdict{.root_cause = str("stopped at once by ", signal_name(signal)),
                         .exit_code = static_cast<int>(stop_code())};
      ending_started_ = true;
    }
    kill_all();
  }

  // Programs that a signal stops get heartbeat_seconds; so do those that never ask, from the end of
  // one that did.  The others are held to the hang rules.
  bool stop_overdue() const {
    if (!seen_.stop_signal) return false;
    const auto is_late = [&](std::size_t rank) {
      if (!processes_.alive(rank) || seen_.ranks[rank].stops_itself()) return false;
      const auto since = knows_of_stop_.contains(rank) ? first_ending_ms() : stop_ms_;
      return since && seen_.now_ms - *since >= seen_.limits.heartbeat_ms;
    };
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      if (is_late(rank)) return true;
    }
    return false;
  }

  std::optional<std::int64_t> first_ending_ms() const {
    std::optional<std::int64_t> first;
    for (const RankRecord& rank : seen_.ranks) {
      if (rank.ending) first = std::min(first.value_or(rank.ending_ms), rank.ending_ms);
    }
    return first;
  }

  // A rank of penstock's that was not yet ready for the signal has ended by it: the others would
  // wait for it in vain.
  bool stopped_in_start_up() const {
    if (!seen_.stop_signal || options_.channel != ControlChannel::Required) return false;
    const Ending by_signal{Ending::Kind::Signalled, *seen_.stop_signal};
    return std::any_of(seen_.ranks.begin(), seen_.ranks.end(),
                       [&](const RankRecord& rank) { return rank.ending == by_signal; });
  }

  // --- Judging and ending -----------------------------------------------------------------------

  void judge() {
    if (auto loss = processes_.loss()) {
      begin_ending(std::move(*loss));
    } else if (const auto failed_ms = first_failure_ms(seen_)) {
      if (processes_.alive_count() == 0 || seen_.now_ms - *failed_ms >= processes_.settle_ms()) {
        begin_ending(*find_failure(seen_));
      }
    } else if (stopped_in_start_up() && processes_.alive_count() > 0) {
      begin_ending({.root_cause = str("stopped by ", signal_name(*seen_.stop_signal)),
                    .notes = {"a rank was still starting; nothing was trained"},
                    .exit_code = static_cast<int>(stop_code())});
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
    name_host();
    add_memory_note();
    ending_started_ = true;
    ending_ms_ = seen_.now_ms;
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      if (seen_.ranks[rank].stops_itself()) {
        processes_.send(rank, Abort{verdict_->root_cause});
      } else {
        processes_.signal(rank, SIGTERM);
      }
      processes_.signal(rank, SIGCONT);  // A stopped rank acts on neither.
    }
  }

  // "rank 2 on worker-1 was killed".
  void name_host() {
    if (!verdict_->rank) return;
    const std::string host = processes_.host_of(verdict_->rank->index());
    const std::string rank = str("rank ", *verdict_->rank);
    if (host.empty() || !verdict_->root_cause.starts_with(rank)) return;
    verdict_->root_cause.insert(rank.size(), " on " + host);
  }

  void add_memory_note() {
    const RankRecord* root = verdict_->rank ? &seen_.ranks[verdict_->rank->index()] : nullptr;
    const bool is_elsewhere = root && !processes_.host_of(verdict_->rank->index()).empty();
    const Ending killed{Ending::Kind::Signalled, SIGKILL};
    if (root == nullptr || is_elsewhere || root->ending != killed) return;
    const std::int64_t kills = oom_kills().value_or(0) - oom_kills_before_.value_or(0);
    if (kills <= 0) return;
    verdict_->notes.insert(verdict_->notes.begin(),
                           str("the kernel ran out of memory meanwhile: oom_kill +", kills,
                               "; fewer or smaller microbatches in flight need less"));
  }

  // Ranks that listen had their word first; those that are left get SIGTERM, then SIGKILL.
  void escalate() {
    const std::int64_t since_ms = seen_.now_ms - ending_ms_;
    if (!killed_ && since_ms >= grace_ms_) {
      kill_all();
    } else if (!terminated_ && since_ms >= grace_ms_ / 3) {
      terminated_ = true;
      processes_.signal_all(SIGTERM, ranks());
    } else if (killed_ && seen_.now_ms - killed_ms_ > kUnkillableMs) {
      for (std::string& note : processes_.abandon()) verdict_->notes.push_back(std::move(note));
    }
  }

  void kill_all() {
    terminated_ = killed_ = true;
    killed_ms_ = seen_.now_ms;
    processes_.signal_all(SIGKILL, ranks());
  }

  // --- The result -------------------------------------------------------------------------------

  LaunchResult result() const {
    LaunchResult result = verdict_ ? failed() : ended_in_order();
    for (const RankRecord& rank : seen_.ranks) result.endings.push_back(*rank.ending);
    result.stop_asked = was_asked_;
    if (options_.messages != nullptr) *options_.messages << summary(result) << std::flush;
    return result;
  }

  LaunchResult failed() const {
    LaunchResult result{verdict_->exit_code, verdict_->root_cause, verdict_->notes, {}};
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      if (seen_.ranks[rank].unreadable == 0) continue;
      result.notes.push_back(str("rank ", rank, " sent ", seen_.ranks[rank].unreadable,
                                 " unreadable messages on its control channel"));
    }
    if (!options_.log_dir.empty() && verdict_->rank) {
      result.notes.push_back(str("output: ", options_.log_dir, "/rank-", *verdict_->rank, ".log"));
    }
    const std::string others = describe_other_endings(seen_.ranks, verdict_->rank);
    if (!others.empty()) result.notes.push_back(others);
    return result;
  }

  // No rank failed: all exited 0, or stopped early in good order.
  LaunchResult ended_in_order() const {
    LaunchResult result;
    if (seen_.stop_signal) {
      result.exit_code = static_cast<int>(stop_code());
      result.root_cause = str("stopped by ", signal_name(*seen_.stop_signal));
      if (!options_.stop_note.empty()) result.notes = {options_.stop_note};
      return result;
    }
    for (const RankRecord& rank : seen_.ranks) {
      if (rank.ending->value != 0) result.exit_code = rank.ending->value;
    }
    if (result.exit_code != 0) result.root_cause = "stopped before the last step";
    return result;
  }

  const LaunchOptions& options_;
  const std::int64_t grace_ms_;
  const std::optional<std::int64_t> oom_kills_before_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  SignalPipe signals_;
  Observation& seen_;
  Ranks& processes_;

  bool was_asked_ = false;    // True once it was asked to stop, at any time.
  std::int64_t stop_ms_ = 0;  // When seen_.stop_signal came.
  std::set<std::size_t> knows_of_stop_;
  std::optional<Verdict> verdict_;  // Fixed once the ending starts.
  bool ending_started_ = false;
  bool terminated_ = false;
  bool killed_ = false;
  std::int64_t ending_ms_ = 0;
  std::int64_t killed_ms_ = 0;
};

}  // namespace

LaunchResult watch(const LaunchOptions& options, Ranks& ranks, Observation& seen) {
  check(options);
  return Launch(options, ranks, seen).run();
}

LaunchResult launch(const LaunchOptions& options) {
  check(options);
  open_standard_descriptors();
  Observation seen;
  RankProcesses ranks(options, seen);
  return watch(options, ranks, seen);
}

std::string summary(const LaunchResult& result) {
  if (result.root_cause.empty()) return "";
  return str("penstock: ", Error(result.root_cause, result.notes).what(), "\n");
}

}  // namespace penstock::launch
