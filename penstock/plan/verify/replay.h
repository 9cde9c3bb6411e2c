// Runs a schedule's programs against each other: what may happen next, and who waits for what.
//
// The one place that knows how messages meet in the channels of options.h.  verify runs it without
// a clock, to see whether every rank reaches its end; simulate runs it with one.  Each rank runs
// ahead as far as its inputs are there: which rank is asked first changes nothing but the order of
// the calls below.
//
// A Clock is told what happens, and may hold messages back:
//   compute(rank, actions)     F, B, I or W runs, or an overlapped pair;
//   beside(rank, action)       UNSHARD, RESHARD or REDUCE_GRAD;
//   post(rank, message)        a SEND or a RECV;
//   set_out(message) -> bool   its channel lets it go; false when it arrives later, which
//   next_arrival()             says: a message, or kNoMessage; asked when nothing else can happen;
//   go_on(rank, message)       a blocking SEND or RECV is over.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "penstock/plan/verify/diagnostic.h"
#include "penstock/plan/verify/hops.h"
#include "penstock/plan/verify/options.h"
#include "penstock/schedule/schedule.h"

namespace penstock::verify {

// The SENDs and RECVs of one rank, to one peer or to all, that are posted and have not met.
struct Queue {
  Rank rank;
  std::vector<std::uint32_t> steps;  // Indices into the rank's program.
  std::size_t head = 0;

  bool empty() const { return head == steps.size(); }
  void pop();
};

// How far every rank has come.
struct Standing {
  Standing(const schedule::Schedule& schedule, const schedule::Homes& homes,
           const Options& options);

  bool is_over() const;

  enum Flag : std::uint8_t { kSent = 1, kReceived = 2, kArrived = 4, kByHalf = 8 };
  bool has(MessageId message, Flag flag) const { return (flags[message] & flag) != 0; }

  const schedule::Schedule& schedule;
  const schedule::Homes& homes;
  Channels channels;
  Communication communication;
  bool lowered;
  Hops hops;
  // Flags by message: its two ends are posted, it has arrived; an I made it.
  std::vector<std::uint8_t> flags;
  std::vector<std::uint32_t> next;  // First action of each rank not yet run.
  // Message that each rank waits for; kNoMessage: it runs, or is over.
  std::vector<MessageId> blocked_on;
  std::vector<Queue> queues;                 // Queues of PairFifo and RankFifo channels.
  std::vector<std::uint32_t> send_queue;     // Queue of each hop's SENDs.
  std::vector<std::uint32_t> receive_queue;  // Queue of each hop's RECVs.
};

// The message at the head of a queue, kNoMessage when it is empty.
inline MessageId head_of(const Standing& at, std::uint32_t queue) {
  const Queue& of = at.queues[queue];
  if (of.empty()) return kNoMessage;
  return at.hops.message_of(at.schedule.programs[of.rank.index()][of.steps[of.head]]);
}

// The cycle of waits.
// REQUIRES: nothing more can happen, and not every rank is at its end.
Diagnostic deadlock(const Standing& standing);

template <class Clock>
class Replay {
 public:
  Replay(const schedule::Schedule& schedule, const schedule::Homes& homes, const Options& options)
      : at_(schedule, homes, options) {}

  const Standing& standing() const { return at_; }

  // Runs until nothing more can happen.
  void run(Clock& clock);

 private:
  using Action = schedule::Action;

  void advance(std::size_t rank, Clock& clock);
  bool inputs_are_there(std::size_t rank, std::span<const Action> together);
  void hand_on(const Action& action, Clock& clock);
  bool pass(std::size_t rank, const Action& action, Clock& clock);
  void match(std::uint32_t queue, Clock& clock);
  void set_out(MessageId message, Clock& clock) {
    if (clock.set_out(message)) arrive(message);
  }
  void arrive(MessageId message);
  void wake(Rank rank, MessageId message);

  Standing at_;
  std::vector<std::size_t> ready_;
  std::vector<std::uint32_t> to_match_;
};

template <class Clock>
void Replay<Clock>::run(Clock& clock) {
  for (std::size_t rank = at_.next.size(); rank > 0; --rank) ready_.push_back(rank - 1);
  while (true) {
    while (!ready_.empty()) {
      const std::size_t rank = ready_.back();
      ready_.pop_back();
      advance(rank, clock);
    }
    const MessageId message = clock.next_arrival();
    if (message == kNoMessage) return;
    arrive(message);
  }
}

template <class Clock>
void Replay<Clock>::advance(std::size_t rank, Clock& clock) {
  const std::span program(at_.schedule.programs[rank]);
  std::uint32_t& next = at_.next[rank];
  while (next < program.size()) {
    const Action& action = program[next];
    if (schedule::is_compute(action.op)) {
      const auto together = program.subspan(next, action.overlaps_next ? 2 : 1);
      if (!inputs_are_there(rank, together)) return;
      clock.compute(rank, together);
      if (!at_.lowered) {
        for (const Action& each : together) hand_on(each, clock);
      }
      next += static_cast<std::uint32_t>(together.size());
    } else if (schedule::is_send(action.op) || schedule::is_receive(action.op)) {
      if (!pass(rank, action, clock)) return;
      ++next;
    } else {
      clock.beside(rank, action);
      ++next;
    }
  }
}

template <class Clock>
bool Replay<Clock>::inputs_are_there(std::size_t rank, std::span<const Action> together) {
  for (const Action& action : together) {
    const MessageId input = at_.hops.input_of(action);
    if (input == kNoMessage || at_.has(input, Standing::kArrived)) continue;
    at_.blocked_on[rank] = input;
    return false;
  }
  return true;
}

// Sends a value when it is made: the program has no messages.
template <class Clock>
void Replay<Clock>::hand_on(const Action& action, Clock& clock) {
  const MessageId output = at_.hops.output_of(action);
  if (output == kNoMessage) return;
  at_.flags[output] |= Standing::kSent | Standing::kReceived;
  if (action.op == schedule::Op::BackwardInput) at_.flags[output] |= Standing::kByHalf;
  clock.post(at_.hops[at_.hops.hop_of(output)].from.index(), output);
  set_out(output, clock);
}

// Posts a SEND or a RECV; false when the rank has to wait for it.
template <class Clock>
bool Replay<Clock>::pass(std::size_t rank, const Action& action, Clock& clock) {
  const MessageId message = at_.hops.message_of(action);
  const bool sends = schedule::is_send(action.op);
  const auto end = sends ? Standing::kSent : Standing::kReceived;
  if (!at_.has(message, end)) {
    at_.flags[message] |= end;
    clock.post(rank, message);
    if (!at_.queues.empty()) {
      const HopId hop = at_.hops.hop_of(message);
      const std::uint32_t queue = sends ? at_.send_queue[hop] : at_.receive_queue[hop];
      at_.queues[queue].steps.push_back(at_.next[rank]);
      match(queue, clock);
    } else if (at_.has(message, sends ? Standing::kReceived : Standing::kSent)) {
      set_out(message, clock);
    }
  }
  if (at_.communication == Communication::Overlapped) return true;
  if (!at_.has(message, Standing::kArrived)) {
    at_.blocked_on[rank] = message;
    return false;
  }
  clock.go_on(rank, message);
  return true;
}

// Lets messages go whose two ends head their queues, beginning with `queue`.
template <class Clock>
void Replay<Clock>::match(std::uint32_t queue, Clock& clock) {
  to_match_.push_back(queue);
  while (!to_match_.empty()) {
    const std::uint32_t one = to_match_.back();
    to_match_.pop_back();
    const MessageId message = head_of(at_, one);
    if (message == kNoMessage) continue;
    const HopId hop = at_.hops.hop_of(message);
    const std::uint32_t other =
        at_.send_queue[hop] == one ? at_.receive_queue[hop] : at_.send_queue[hop];
    if (head_of(at_, other) != message) continue;
    at_.queues[one].pop();
    at_.queues[other].pop();
    set_out(message, clock);
    to_match_.push_back(one);
    to_match_.push_back(other);
  }
}

template <class Clock>
void Replay<Clock>::arrive(MessageId message) {
  at_.flags[message] |= Standing::kArrived;
  const Hop& hop = at_.hops[at_.hops.hop_of(message)];
  wake(hop.to, message);
  wake(hop.from, message);
}

template <class Clock>
void Replay<Clock>::wake(Rank rank, MessageId message) {
  if (at_.blocked_on[rank.index()] != message) return;
  at_.blocked_on[rank.index()] = kNoMessage;
  ready_.push_back(rank.index());
}

}  // namespace penstock::verify
