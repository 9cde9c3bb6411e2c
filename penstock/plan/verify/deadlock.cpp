#include <algorithm>
#include <set>
#include <utility>
#include <variant>

#include "penstock/core/check.h"
#include "penstock/core/text.h"
#include "penstock/plan/verify/replay.h"

namespace penstock::verify {
namespace {

using schedule::Action;
using schedule::Op;
using schedule::Program;

constexpr std::size_t kShown = 32;  // Waits of a cycle: the first and the last of a longer one.

// Follows the waits between ranks that are stuck and messages that stand in queues.
class Waits {
 public:
  using Waiter = std::variant<Rank, MessageId>;

  struct Edge {
    Rank rank;
    std::int32_t step = 0;
    std::string text;  // "1F1 waits for 0SEND_F1 of rank 0".
    Waiter awaited;
  };

  explicit Waits(const Standing& at) : at_(at) {}

  Edge edge_of(const Waiter& waiter) const {
    return std::holds_alternative<Rank>(waiter) ? edge_of(std::get<Rank>(waiter))
                                                : edge_of(std::get<MessageId>(waiter));
  }

  // Everybody who is stuck waits for somebody who is stuck, so following the waits ends in a cycle.
  std::vector<Edge> cycle() const {
    std::set<Waiter> seen;
    Waiter waiter = first_stuck();
    while (seen.insert(waiter).second) waiter = edge_of(waiter).awaited;
    const Waiter first = waiter;
    std::vector<Edge> edges;
    do {
      edges.push_back(edge_of(waiter));
      waiter = edges.back().awaited;
    } while (waiter != first);
    return edges;
  }

 private:
  const Program& program(Rank rank) const { return at_.schedule.programs[rank.index()]; }

  Rank first_stuck() const {
    std::size_t rank = 0;
    while (at_.next[rank] == at_.schedule.programs[rank].size()) ++rank;
    return Rank(rank);
  }

  Edge edge_of(Rank rank) const {
    const std::uint32_t step = at_.next[rank.index()];
    const MessageId message = at_.blocked_on[rank.index()];
    PENSTOCK_CHECK(message != kNoMessage, "rank ", rank, " is stuck for no reason");
    const Hop& hop = at_.hops[at_.hops.hop_of(message)];
    const bool awaits_receiver = at_.has(message, Standing::kSent) && hop.from == rank;
    const Rank peer = awaits_receiver ? hop.to : hop.from;
    const Action awaited = awaits_receiver ? at_.hops.receive_of(message) : source_of(message);
    Edge edge{.rank = rank,
              .step = static_cast<std::int32_t>(step),
              .text = str(program(rank)[step], " waits for ", awaited, " of rank ", peer),
              .awaited = peer};
    if (is_posted(message)) edge.awaited = message;
    return edge;
  }

  bool is_posted(MessageId message) const {
    return at_.has(message, Standing::kSent) && at_.has(message, Standing::kReceived);
  }

  // What the receiver of a message waits for: the SEND, or in a program without messages the action
  // that makes the value.
  Action source_of(MessageId message) const {
    Action source = at_.hops.send_of(message);
    if (at_.lowered) return source;
    source.op = source.op == Op::SendForward ? Op::Forward : Op::Backward;
    const Program& maker = program(at_.homes.of(source));
    const auto has = [&](const Action& action) {
      return std::ranges::any_of(maker, [&](const Action& each) {
        return each.op == action.op && each.stage == action.stage &&
               each.microbatch == action.microbatch;
      });
    };
    if (source.op == Op::Backward && !has(source)) source.op = Op::BackwardInput;
    return source;
  }

  // A message in a queue waits for those ahead of it; one at the head, for its other end.
  Edge edge_of(MessageId message) const {
    const HopId hop = at_.hops.hop_of(message);
    const Action send = at_.hops.send_of(message);
    const Action receive = at_.hops.receive_of(message);
    const bool sent = at_.has(message, Standing::kSent);
    if (sent && head_of(at_, at_.send_queue[hop]) != message) {
      return behind_head(send, at_.send_queue[hop]);
    }
    const bool received = at_.has(message, Standing::kReceived);
    if (received && head_of(at_, at_.receive_queue[hop]) != message) {
      return behind_head(receive, at_.receive_queue[hop]);
    }
    const Queue& queue = at_.queues[sent ? at_.send_queue[hop] : at_.receive_queue[hop]];
    const Rank peer = sent ? at_.hops[hop].to : at_.hops[hop].from;
    return {.rank = queue.rank,
            .step = static_cast<std::int32_t>(queue.steps[queue.head]),
            .text = sent ? str(send, " waits for ", receive, " of rank ", peer)
                         : str(receive, " waits for ", send, " of rank ", peer),
            .awaited = peer};
  }

  Edge behind_head(const Action& end, std::uint32_t queue) const {
    const Queue& of = at_.queues[queue];
    const Program& own = program(of.rank);
    const auto place = std::find_if(of.steps.begin() + static_cast<std::ptrdiff_t>(of.head),
                                    of.steps.end(), [&](auto step) { return own[step] == end; });
    const MessageId head = head_of(at_, queue);
    return {.rank = of.rank,
            .step = static_cast<std::int32_t>(*place),
            .text = str(end, " stands in the queue behind ", own[of.steps[of.head]], " of step ",
                        of.steps[of.head]),
            .awaited = head};
  }

  const Standing& at_;
};

}  // namespace

Diagnostic deadlock(const Standing& at) {
  const auto cycle = Waits(at).cycle();
  const Waits::Edge& first = cycle.front();
  const Program& program = at.schedule.programs[first.rank.index()];
  Diagnostic diagnostic{
      .code = Code::Deadlock,
      .rank = first.rank,
      .step = first.step,
      .message = str(program[static_cast<std::size_t>(first.step)], " waits for itself: deadlock"),
      .notes = {str("rank ", first.rank, ": ", window(program, first.step))}};
  const std::size_t left_out = cycle.size() > kShown ? cycle.size() - kShown : 0;
  for (std::size_t i = 0; i < cycle.size(); ++i) {
    const Waits::Edge& edge = cycle[i];
    if (i == kShown / 2 && left_out > 0) {
      diagnostic.notes.push_back(str("... and ", left_out, " more waits ..."));
      i += left_out - 1;
      continue;
    }
    diagnostic.notes.push_back(str("rank ", edge.rank, " step ", edge.step, ": ", edge.text));
  }
  const bool queued = std::ranges::any_of(cycle, [](const Waits::Edge& edge) {
    return std::holds_alternative<MessageId>(edge.awaited);
  });
  diagnostic.notes.push_back(
      queued ? str(to_string(at.channels),
                   " channels need one order of messages on both ranks; change one, or use tagged "
                   "channels")
             : "on one of these ranks, move what is waited for ahead of what waits");
  return diagnostic;
}

}  // namespace penstock::verify
