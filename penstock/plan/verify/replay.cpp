#include "penstock/plan/verify/replay.h"

#include <map>
#include <utility>

namespace penstock::verify {
namespace {

// Numbers queues by the rank they are on and, of PairFifo channels, its peer.
class QueueNumbers {
 public:
  explicit QueueNumbers(Standing& at) : at_(at) {}

  std::uint32_t of(Rank rank, Rank peer) {
    const Rank key = at_.channels == Channels::PairFifo ? peer : rank;
    const auto next = static_cast<std::uint32_t>(at_.queues.size());
    const auto [found, is_new] = numbers_.emplace(std::pair(rank, key), next);
    if (is_new) at_.queues.push_back({.rank = rank});
    return found->second;
  }

 private:
  Standing& at_;
  std::map<std::pair<Rank, Rank>, std::uint32_t> numbers_;
};

bool has_queues(Channels channels) {
  switch (channels) {
    case Channels::Tagged:
    // Messages are in order on both sides, or misorders() objects: as good as tagged.
    case Channels::DirFifo:
      return false;
    case Channels::PairFifo:
    case Channels::RankFifo:
      return true;
  }
  return false;
}

}  // namespace

void Queue::pop() {
  ++head;
  if (head < 64 || 2 * head < steps.size()) return;
  steps.erase(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(head));
  head = 0;
}

Standing::Standing(const schedule::Schedule& of, const schedule::Homes& of_stages,
                   const Options& options)
    : schedule(of),
      homes(of_stages),
      channels(options.channels),
      communication(options.communication),
      lowered(schedule::is_lowered(of)),
      hops(of, of_stages),
      flags(hops.messages(), 0),
      next(of.programs.size(), 0),
      blocked_on(of.programs.size(), kNoMessage) {
  if (!lowered || !has_queues(channels)) return;
  QueueNumbers numbers(*this);
  for (HopId hop = 0; hop < hops.count(); ++hop) {
    send_queue.push_back(numbers.of(hops[hop].from, hops[hop].to));
    receive_queue.push_back(numbers.of(hops[hop].to, hops[hop].from));
  }
}

bool Standing::is_over() const {
  for (std::size_t rank = 0; rank < next.size(); ++rank) {
    if (next[rank] < schedule.programs[rank].size()) return false;
  }
  return true;
}

}  // namespace penstock::verify
