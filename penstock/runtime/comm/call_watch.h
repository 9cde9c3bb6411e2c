// Finds ranks that are in different calls for all ranks, and will wait for each other for ever.
//
// A thread that mostly sleeps.  When a call has lasted for seconds, it asks the next rank which
// call that one is in.  Two calls of one number with different names are a mistake of the script's,
// if two looks see them and neither rank has spoken in between.  Every rank asks the next, so
// whatever differs differs between two that ask.  Knows no connections.
#pragma once
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "penstock/runtime/comm/call_words.h"

namespace penstock::comm {

class CallWatch {
 public:
  // What it uses outlives it.
  struct Uses {
    std::function<CallPlace()> own;      // Returns where this rank is.
    std::function<SeenRank()> ask_next;  // Asks where the next rank is.
    // Called once, when the two are at odds.
    std::function<void(const CallPlace& own, const SeenRank& next)> found;
  };
  explicit CallWatch(Uses uses);
  ~CallWatch();
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;

 private:
  void run();
  // Whether to go on.
  bool sleep(std::chrono::milliseconds time);

  Uses uses_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace penstock::comm
