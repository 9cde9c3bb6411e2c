#include "penstock/plan/verify/misorder.h"

#include <algorithm>
#include <map>
#include <utility>

#include "penstock/core/text.h"

namespace penstock::verify {
namespace {

using schedule::Action;
using schedule::Program;
using schedule::Schedule;

// What goes from one rank to another, in the order it is sent.
struct Link {
  Rank from;
  std::vector<std::uint32_t> sends;  // Steps of the sender's program.
  std::size_t received = 0;
  bool out_of_order = false;
};

class Matching {
 public:
  Matching(const Schedule& schedule, const Hops& hops) : schedule_(schedule), hops_(hops) {
    std::map<std::pair<Rank, Rank>, std::size_t> numbers;
    for (HopId hop = 0; hop < hops.count(); ++hop) {
      const auto ends = std::pair(hops[hop].from, hops[hop].to);
      const auto [found, is_new] = numbers.emplace(ends, links_.size());
      if (is_new) links_.push_back({.from = ends.first});
      link_of_hop_.push_back(found->second);
    }
  }

  std::vector<Diagnostic> run() {
    each(
        [](const Action& a) { return schedule::is_send(a.op); },
        [&](const Action& send, Rank, std::uint32_t step) { link_of(send).sends.push_back(step); });
    each([](const Action& a) { return schedule::is_receive(a.op); },
         [&](const Action& receive, Rank rank, std::uint32_t step) { meet(receive, rank, step); });
    return std::move(diagnostics_);
  }

 private:
  template <class Is, class Visit>
  void each(const Is& is, const Visit& visit) const {
    for (std::size_t rank = 0; rank < schedule_.programs.size(); ++rank) {
      const Program& program = schedule_.programs[rank];
      for (std::uint32_t step = 0; step < program.size(); ++step) {
        if (is(program[step])) visit(program[step], Rank(rank), step);
      }
    }
  }

  const Program& program(Rank rank) const { return schedule_.programs[rank.index()]; }
  Link& link_of(const Action& message) {
    return links_[link_of_hop_[hops_.hop_of(hops_.message_of(message))]];
  }

  // The next RECV of a link meets the next SEND, whatever the two name.
  void meet(const Action& receive, Rank rank, std::uint32_t step) {
    Link& link = link_of(receive);
    const std::size_t number = link.received++;
    const std::uint32_t send_step = link.sends[number];
    const Action& send = program(link.from)[send_step];
    if (hops_.message_of(send) == hops_.message_of(receive) || link.out_of_order) return;
    link.out_of_order = true;
    const Action wanted = schedule::other_end(receive);
    const Action taken = schedule::other_end(send);
    diagnostics_.push_back(
        {.code = Code::Misorder,
         .rank = rank,
         .step = static_cast<std::int32_t>(step),
         .message = str(receive, " would receive what ", send, " sends"),
         .notes = {
             str("rank ", rank, ": ", window(program(rank), static_cast<std::int32_t>(step))),
             str("message ", number, " from rank ", link.from, " to rank ", rank, ": ", send,
                 " at rank ", link.from, " step ", send_step, " sends it, ", receive, " at rank ",
                 rank, " step ", step, " receives it"),
             str("its own RECV, ", taken, ", is at rank ", rank, " step ", step_of(taken, rank),
                 "; ", wanted, " is at rank ", link.from, " step ", step_of(wanted, link.from),
                 "; receive in the order of the SENDs, or use tagged channels")}});
  }

  std::ptrdiff_t step_of(const Action& action, Rank rank) const {
    return std::ranges::find(program(rank), action) - program(rank).begin();
  }

  const Schedule& schedule_;
  const Hops& hops_;
  std::vector<Link> links_;
  std::vector<std::size_t> link_of_hop_;
  std::vector<Diagnostic> diagnostics_;
};

}  // namespace

std::vector<Diagnostic> misorders(const Schedule& schedule, const Hops& hops) {
  return Matching(schedule, hops).run();
}

}  // namespace penstock::verify
