// Which values of a schedule cross ranks, as the messages that carry them.
//
// The passes that place messages, and those that ask what must run before what on another rank,
// read it.  Knows neither the order of the programs nor where messages stand in them.
#pragma once
#include <cstddef>
#include <optional>
#include <vector>

#include "penstock/schedule/schedule.h"

namespace penstock::schedule {

class Messages {
 public:
  // REQUIRES, here and below: stages and microbatches in range.
  explicit Messages(const Schedule& schedule);

  // The SEND of what a compute action makes, if a stage on another rank needs it.
  std::optional<Action> sent_after(const Action& compute) const;
  // The RECV of what a compute action needs, if a stage on another rank makes it.
  std::optional<Action> received_before(const Action& compute) const;

  // The rank that runs a SEND or RECV, and that of its other end.
  std::size_t rank_of(const Action& action) const { return rank_of_[action.stage.index()]; }
  std::size_t peer_of(const Action& message) const { return rank_of(other_end(message)); }

  // A number for each message, in [0, count()), the same for its SEND and its RECV.
  std::size_t number(const Action& message) const;
  std::size_t count() const { return 2 * rank_of_.size() * microbatches_; }

 private:
  std::optional<Action> crossing(const Action& compute, std::int32_t offset, Op op) const;

  std::vector<std::size_t> rank_of_;  // By stage.
  std::size_t microbatches_;
};

}  // namespace penstock::schedule
