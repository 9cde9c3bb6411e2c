// The sends of one rank whose ends nobody has waited for, and which of them are known to be over.
//
// lower() places the waits with it.  Knows no plan: a send is a value of any type.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "penstock/core/ids.h"

namespace penstock::lower {

template <class Send>
class SendsUnderWay {
 public:
  // `peer` uses the value up at step `use` of its program.
  void add(Rank peer, std::int32_t use, Send send) {
    auto& sends = by_peer_[peer];
    sends.push_back({use, sent_++, std::move(send)});
    std::push_heap(sends.begin(), sends.end(), LaterUse());
  }

  // `peer` has come to step `step`: what it had used up by then has reached it.
  void prove(Rank peer, std::int32_t step) {
    auto& sends = by_peer_[peer];
    while (!sends.empty() && sends.front().use <= step) {
      std::pop_heap(sends.begin(), sends.end(), LaterUse());
      proved_.push_back(std::move(sends.back()));
      sends.pop_back();
    }
  }

  // Hands those known to be over to `take`, in the order in which they were added, and forgets
  // them.
  template <class Take>
  void take_proved(const Take& take) {
    std::ranges::sort(proved_, {}, &Entry::number);
    for (Entry& entry : proved_) take(std::move(entry.send));
    proved_.clear();
  }

 private:
  struct Entry {
    std::int32_t use = 0;
    std::size_t number = 0;
    Send send;
  };
  struct LaterUse {
    bool operator()(const Entry& a, const Entry& b) const { return a.use > b.use; }
  };

  std::map<Rank, std::vector<Entry>> by_peer_;  // Heaps, the earliest use first; few peers.
  std::vector<Entry> proved_;
  std::size_t sent_ = 0;
};

}  // namespace penstock::lower
