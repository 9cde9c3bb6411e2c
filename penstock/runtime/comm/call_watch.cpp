#include "penstock/runtime/comm/call_watch.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "penstock/core/background_thread.h"

namespace penstock::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kBetweenLooks(500);
// A call is asked about after two looks, then after four more, and so on: steps may take minutes.
constexpr int kLooksBetweenQuestionsMax = 64;

// When to ask about a call that goes on.
class Turns {
 public:
  bool is_next() {
    if (--looks_left_ > 0) return false;
    between_ = std::min(2 * between_, kLooksBetweenQuestionsMax);
    looks_left_ = between_;
    return true;
  }
  void soon() { looks_left_ = 1; }

 private:
  int between_ = 2;
  int looks_left_ = 2;
};

}  // namespace

CallWatch::CallWatch(Uses uses) : uses_(std::move(uses)) {
  thread_ = start_background_thread([this] { run(); });
}

CallWatch::~CallWatch() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool CallWatch::sleep(milliseconds time) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, time, [this] { return is_over_; });
}

void CallWatch::run() {
  CallPlace before;
  // The next rank's place at the last look, if it was at odds with `before`.
  std::optional<CallPlace> next_before;
  Turns turns;
  while (sleep(kBetweenLooks)) {
    const CallPlace now = uses_.own();
    if (now.number == 0 || now.number != before.number) {
      turns = Turns();
      next_before.reset();
    } else if (turns.is_next()) {
      const SeenRank next = uses_.ask_next();
      const bool at_odds = next.place && are_at_odds(now, *next.place);
      if (at_odds && now == before && next.place == next_before) return uses_.found(now, next);
      next_before = at_odds ? next.place : std::nullopt;
      if (at_odds) turns.soon();
    }
    before = now;
  }
}

}  // namespace penstock::comm
