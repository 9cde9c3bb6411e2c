// The sends of one rank whose ends nobody has waited for, and which of them are known to be over.
//
// lower() places the waits with it.  Knows no plan: a send is a number, higher than those of the
// sends before it, and so is a peer.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace penstock::lower {

class SendsUnderWay {
 public:
  // Peers are numbered in [0, peers).
  explicit SendsUnderWay(std::size_t peers) : by_peer_(peers) {}

  // `peer` uses the value up at step `use` of its program.
  void add(std::size_t peer, std::int32_t use, std::size_t send) {
    auto& sends = by_peer_[peer].sends;
    // Mostly in the order of use already.
    auto place = sends.end();
    while (place != sends.begin() + by_peer_[peer].over && (place - 1)->use > use) --place;
    sends.insert(place, {use, send});
  }

  // `peer` has come to step `step`: what it had used up by then has reached it.
  void prove(std::size_t peer, std::int32_t step) {
    auto& [sends, over] = by_peer_[peer];
    for (; over < std::ssize(sends) && sends[static_cast<std::size_t>(over)].use <= step; ++over) {
      proved_.push_back(sends[static_cast<std::size_t>(over)].send);
    }
    if (over < std::ssize(sends)) return;
    sends.clear();
    over = 0;
  }

  // Calls take(send) for those known to be over, in their order, and forgets them.
  template <class Take>
  void take_proved(const Take& take) {
    if (!std::ranges::is_sorted(proved_)) std::ranges::sort(proved_);
    for (const std::size_t send : proved_) take(send);
    proved_.clear();
  }

 private:
  struct Entry {
    std::int32_t use = 0;
    std::size_t send = 0;
  };
  struct Peer {
    std::vector<Entry> sends;  // Sends in the order of their use.
    std::ptrdiff_t over = 0;   // The first sends that are known to be over.
  };

  std::vector<Peer> by_peer_;
  std::vector<std::size_t> proved_;
};

}  // namespace penstock::lower
