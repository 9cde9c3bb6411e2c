// Lets the ranks of a schedule act in rounds, for passes that run programs against each other.
//
// In a round every rank that is awake takes one turn, in the order of the ranks.  A rank that can
// do nothing sleeps until another one's turn wakes it.  So the cost is in proportion to the turns,
// however long ranks wait.  Knows no actions: what a turn does is the caller's.
// Source: the rounds in which torch.distributed.pipelining places messages.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <queue>
#include <vector>

namespace penstock::schedule {

class Turns {
 public:
  enum class Outcome : std::uint8_t {
    Again,  // It acted, and wants another turn in the next round.
    Waits,  // It could not act: it sleeps.
    Over,   // It has nothing left to do.
  };

  // All ranks are awake.
  explicit Turns(std::size_t ranks) : asleep_(ranks, false), next_round_(ranks) {
    std::iota(next_round_.begin(), next_round_.end(), std::size_t{0});
  }

  // Calls turn(rank), which returns an Outcome, until no rank is awake.
  template <class Turn>
  void run(const Turn& turn) {
    while (!next_round_.empty()) {
      begin_round();
      while (const auto rank = pop()) {
        current_ = *rank;
        const Outcome outcome = turn(current_);
        if (outcome == Outcome::Again) next_round_.push_back(current_);
        asleep_[current_] = outcome == Outcome::Waits;
      }
    }
    current_ = asleep_.size();
  }

  // Gives `rank` a turn if it sleeps: in this round if its place is still to come, in the next one
  // if not; after run(), when that is called again.
  void wake(std::size_t rank) {
    if (!asleep_[rank]) return;
    asleep_[rank] = false;
    if (rank > current_) {
      woken_.push(rank);
    } else {
      next_round_.push_back(rank);
    }
  }

 private:
  void begin_round() {
    std::swap(round_, next_round_);
    next_round_.clear();
    // Only ranks that were woken are out of order.
    if (!std::ranges::is_sorted(round_)) std::ranges::sort(round_);
    taken_ = 0;
  }

  // The lowest rank that has not had its turn in this round.
  std::optional<std::size_t> pop() {
    const bool any_left = taken_ < round_.size();
    if (!woken_.empty() && (!any_left || woken_.top() < round_[taken_])) {
      const std::size_t rank = woken_.top();
      woken_.pop();
      return rank;
    }
    if (!any_left) return {};
    return round_[taken_++];
  }

  std::vector<bool> asleep_;
  std::vector<std::size_t> round_;  // Ranks in rising order; the first `taken_` had their turn.
  std::vector<std::size_t> next_round_;
  std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> woken_;
  std::size_t taken_ = 0;
  std::size_t current_ = 0;
};

}  // namespace penstock::schedule
