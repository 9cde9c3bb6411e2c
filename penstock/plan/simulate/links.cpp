#include "penstock/plan/simulate/links.h"

#include <map>
#include <utility>

namespace penstock::simulate {

Links::Links(const Costs& costs, const verify::Hops& hops) : costs_(costs), hops_(hops) {
  std::map<std::pair<Rank, Rank>, std::size_t> numbers;
  for (HopId hop = 0; hop < hops.count(); ++hop) {
    const auto ends = std::pair(hops[hop].from, hops[hop].to);
    const auto [found, is_new] = numbers.emplace(ends, links_.size());
    if (is_new) {
      links_.push_back({.from = ends.first,
                        .to = ends.second,
                        .latency = costs.latency,
                        .bandwidth = costs.bandwidth});
    }
    link_of_hop_.push_back(found->second);
  }
  for (const Link& link : costs.links) {
    const auto found = numbers.find({link.from, link.to});
    if (found != numbers.end()) links_[found->second] = link;
  }
}

double Links::transfer(MessageId message) const {
  const auto& bandwidth = links_[of(hops_.hop_of(message))].bandwidth;
  if (!bandwidth) return 0.0;
  // Both directions of a hop carry what the lower of its two stages makes, or its gradient.
  schedule::Action send = hops_.send_of(message);
  if (send.op == schedule::Op::SendBackward) send = schedule::other_end(send);
  return costs_.message.at(send.stage, *send.microbatch) / *bandwidth;
}

MessageId Waiting::take() {
  const MessageId message = heap_.top().message;
  heap_.pop();
  return message;
}

}  // namespace penstock::simulate
