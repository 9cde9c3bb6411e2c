// Watches the ranks of a run that another launcher started, as penstock's own launcher would.
//
// rank.cpp makes one on each rank.  A rank that stays at one step puts down in the run's store
// where it stands; a rank that does not advance reads what the others put down, and ends its own
// waits by the launcher's rules (launch/verdict.h).  A run whose steps are fast leaves the store
// alone.
// Thread safety: the constructor and the destructor belong to one thread.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/launch/verdict.h"

namespace penstock::rank {

class PeerWatch {
 public:
  // Collective over all ranks.  `progress` is called by a thread of this object.
  PeerWatch(comm::Communicator& communicator, const launch::Limits& limits,
            std::function<launch::ProgressReport()> progress);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

 private:
  void run();
  void beat();
  void put_down(const launch::ProgressReport& report);
  void look();
  void with_store(const std::function<void()>& use);
  void enter(std::size_t rank);
  bool sleep();

  comm::Communicator& communicator_;
  std::function<launch::ProgressReport()> progress_;
  const std::chrono::milliseconds interval_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  launch::Observation seen_;
  std::vector<std::string> texts_;  // Texts by rank, as put down last.
  std::int64_t beats_ = 0;
  bool has_lost_store_ = false;  // Whoever asked it last may wait for ever.
  std::mutex mutex_;             // Guards the next.
  bool is_over_ = false;
  std::condition_variable over_;
  std::thread thread_;
};

}  // namespace penstock::rank
