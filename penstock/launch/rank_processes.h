// The ranks of one launch as processes: started, heard, signalled, reaped.
//
// Used by launcher.h, which decides; this only acts, and enters what it sees into an Observation.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/file_descriptor.h"
#include "penstock/launch/control_message.h"
#include "penstock/launch/guard.h"
#include "penstock/launch/launcher.h"
#include "penstock/launch/process.h"
#include "penstock/launch/rank_environment.h"
#include "penstock/launch/ranks.h"
#include "penstock/launch/speaker.h"
#include "penstock/launch/verdict.h"

namespace penstock::launch {

// The reading ends of what a rank writes; without RankStreams::Piped, none.
struct Streams {
  FileDescriptor output;
  FileDescriptor errors;
};

// Ranks are counted from 0 here, whatever options.first_rank is.
class RankProcesses : public Ranks {
 public:
  // A line that a rank has written to its control channel, before it is read.
  using Overhear = std::function<void(std::size_t rank, std::string_view line)>;

  // Both must outlive this; `seen.ranks` grows with every rank started.
  RankProcesses(const LaunchOptions& options, Observation& seen, Overhear overhear = {});
  ~RankProcesses() override;  // Kills the ranks that are left, for when something threw.

  void start_all() override;

  std::size_t alive_count() const override { return alive_count_; }
  bool alive(std::size_t rank) const override { return !seen_.ranks[rank].ending; }

  void wait(std::vector<pollfd> others) const override;
  void hear() override;
  // The rest of a rank's process group ends with it.
  void bury() override;

  // Dropped when the rank's channel is full.
  void send(std::size_t rank, const LauncherMessage& message) override;
  void signal(std::size_t rank, int number) override;

  std::vector<std::string> abandon() override;

  // MASTER_PORT.  REQUIRES: start_all() has returned.
  std::uint16_t master_port() const { return master_port_; }
  Streams& streams(std::size_t rank) { return streams_[rank]; }

 private:
  void start(const std::string& program, int rank, const RankVariables& shared);
  void hear_one(std::size_t rank);
  void enter(std::size_t rank, std::string_view line);
  Ending kill_and_reap(std::size_t rank);

  const LaunchOptions& options_;
  Observation& seen_;
  const Overhear overhear_;
  const std::vector<std::string> inherited_;  // Variables.
  Guard guard_;
  std::vector<Process> processes_;  // Processes by rank; the next are by rank, too.
  std::vector<FileDescriptor> channels_;
  std::vector<Speaker> speakers_;  // Speakers that are not the rank's own process.
  std::vector<Streams> streams_;
  std::uint16_t master_port_ = 0;
  std::size_t alive_count_ = 0;
};

}  // namespace penstock::launch
