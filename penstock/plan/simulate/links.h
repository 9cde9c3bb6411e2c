// The links between ranks: what each message takes on its link, and whose turn it is there.
//
// simulate asks it.  A link with a bandwidth carries one message at a time; the others carry any
// number at once.  Knows no programs.
#pragma once
#include <cstdint>
#include <optional>
#include <queue>
#include <vector>

#include "penstock/plan/simulate/costs.h"
#include "penstock/plan/verify/hops.h"

namespace penstock::simulate {

using verify::HopId;
using verify::MessageId;

class Links {
 public:
  // Both must outlive this.
  Links(const Costs& costs, const verify::Hops& hops);

  // A number for the ranks that the hop is between, in [0, count()).
  std::size_t of(HopId hop) const { return link_of_hop_[hop]; }
  std::size_t count() const { return links_.size(); }

  bool one_at_a_time(HopId hop) const { return links_[of(hop)].bandwidth.has_value(); }
  double latency(HopId hop) const { return links_[of(hop)].latency; }
  // How long the message occupies its link.
  double transfer(MessageId message) const;

 private:
  const Costs& costs_;
  const verify::Hops& hops_;
  std::vector<Link> links_;
  std::vector<std::size_t> link_of_hop_;
};

// Messages that wait for their links, by the time at which they could set out.  Of those that could
// at once, the one that was added first.
class Waiting {
 public:
  void add(MessageId message, double time) { heap_.push({time, added_++, message}); }
  bool empty() const { return heap_.empty(); }
  MessageId take();

 private:
  struct Entry {
    double time = 0.0;
    std::uint64_t number = 0;
    MessageId message = 0;
    friend bool operator>(const Entry& a, const Entry& b) {
      return a.time != b.time ? a.time > b.time : a.number > b.number;
    }
  };
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> heap_;
  std::uint64_t added_ = 0;
};

}  // namespace penstock::simulate
