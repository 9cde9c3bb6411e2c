// The calls for all ranks that have begun, failed and been the last ones, as one rank knows it.
//
// World has one.  A rank's calls are numbered by begin(), so ranks that make the same calls have
// the same numbers.  News of a failure says in which call it was: whoever is in that call, or
// begins it, hears of the failure once, and a later call is one with which ranks may begin anew.
// Whoever is still in an earlier call ends that first: the other rank has done its part of it.
// News of a rank's end says its last call: a rank in a later one waits in vain.
// After ranks have begun anew they are of another age, and news of an earlier age means nothing.
// Knows no connections: news are texts.  Thread safety: any thread.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "penstock/core/ids.h"
#include "penstock/runtime/comm/interrupt.h"

namespace penstock::comm {

class RollCall {
 public:
  // News are told to the interrupt, which outlives it.
  RollCall(Rank self, Interrupt& interrupt) : self_(self), interrupt_(interrupt) {}

  // Begins this rank's next call.  Returns: whether the ranks are to begin anew with it.
  // Throws: CommError with a failure that was in this call; the reason of an interrupt that is for
  // good.
  bool begin(const std::string& place);
  // "Trainer::step() with 3 steps taken, call 5".
  std::string place() const;
  std::int64_t age() const;
  // Returns: the failure after which the ranks begin anew.
  std::string begin_age();

  // Notes that this rank has failed.  Returns: the news for the others.
  std::string fail(const std::string& why);
  // Notes that this rank makes no more calls.  Returns: likewise.
  std::string leave() const;
  // Takes news of another rank.
  void hear(const std::string& news);
  bool has_left(Rank rank) const;

 private:
  struct Left {
    std::int64_t call = 0;
    std::string place;
  };
  std::string news(char kind, const std::string& text) const;
  void check_left();

  Rank self_;
  Interrupt& interrupt_;
  mutable std::mutex mutex_;
  std::int64_t age_ = 0;
  std::int64_t call_ = 0;
  std::string place_;
  std::int64_t failed_call_ = 0;
  // The failure in that call, which this rank has not begun; empty: there is none.
  std::string failure_;
  std::map<Rank, Left> left_;
};

}  // namespace penstock::comm
