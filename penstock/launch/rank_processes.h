// The ranks of one launch as processes: started, heard, signalled, reaped.
//
// Used by launcher.h, which decides; this only acts, and enters what it sees into an Observation.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/file_descriptor.h"
#include "penstock/launch/control_message.h"
#include "penstock/launch/guard.h"
#include "penstock/launch/launcher.h"
#include "penstock/launch/process.h"
#include "penstock/launch/rank_environment.h"
#include "penstock/launch/verdict.h"

namespace penstock::launch {

class RankProcesses {
 public:
  // Both must outlive this; `seen.ranks` grows with every rank started.
  RankProcesses(const LaunchOptions& options, Observation& seen);
  RankProcesses(RankProcesses&&) = delete;
  ~RankProcesses();  // Kills the ranks that are left, for when something threw.

  // Throws ConfigError as launch() does; the ranks started so far die with this object.
  void start_all();

  std::size_t alive_count() const { return alive_count_; }
  bool alive(std::size_t rank) const { return !seen_.ranks[rank].ending; }

  // Until a message, an end, input on `other_fd`, or a tick has passed.
  void wait(int other_fd) const;
  // Enters all messages that have arrived, as of seen.now_ms.
  void hear();
  // Enters and buries the ranks that have ended; the rest of their process group ends with them.
  void bury();

  // To a rank that is alive and listens; dropped when its channel is full.
  void send(std::size_t rank, const LauncherMessage& message) const;
  // To a rank's process group.
  void signal(std::size_t rank, int number) const;
  void signal_all(int number) const;

  // Leaves behind the ranks that even SIGKILL does not end; a note about each.
  std::vector<std::string> abandon();

 private:
  void start(const std::string& program, int rank, const RankVariables& shared);
  void hear_one(std::size_t rank);
  void enter(std::size_t rank, std::string_view line);
  Ending kill_and_reap(std::size_t rank);

  const LaunchOptions& options_;
  Observation& seen_;
  const std::vector<std::string> inherited_;  // Variables.
  Guard guard_;
  std::vector<Process> processes_;  // By rank, as the next.
  std::vector<FileDescriptor> channels_;
  std::size_t alive_count_ = 0;
};

}  // namespace penstock::launch
