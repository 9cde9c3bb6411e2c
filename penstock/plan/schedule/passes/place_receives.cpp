#include <algorithm>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/plan/schedule/passes/messages.h"
#include "penstock/plan/schedule/passes/passes.h"

namespace penstock::schedule {
namespace {

// A message in the order of its link.  Receives between two SENDs are a run: while its run is not
// reached, a receive cannot be placed.
struct Message {
  Action action;
  std::uint32_t run = 0;
  bool asked_for = false;
};

// The messages between a rank and one other.
struct Link {
  std::vector<Message> messages;
  std::size_t placed = 0;      // Messages that stand in the result.
  std::uint32_t last_run = 0;  // `run` of the last message.

  std::uint32_t run() const { return placed == 0 ? 0 : messages[placed - 1].run; }
};

// Writes one rank's program anew at a time.
class Placing {
 public:
  Placing(const Schedule& schedule, std::size_t lookahead)
      : messages_(schedule),
        lookahead_(lookahead),
        links_(schedule.programs.size()),
        place_(messages_.count(), 0) {}

  Program run(const Program& program) {
    begin(program);
    for (std::size_t i = 0; i < program.size();) {
      const auto unit = unit_at(program, i);
      add(unit, program);
      i += unit.size();
    }
    end();
    return std::move(result_);
  }

 private:
  void begin(const Program& program) {
    result_ = {};
    result_.reserve(program.size());
    ran_ = asked_ = asked_at_ = 0;
    for (const Action& action : program) {
      if (!is_send(action.op) && !is_receive(action.op)) continue;
      const std::size_t peer = messages_.peer_of(action);
      Link& link = links_[peer];
      if (link.messages.empty()) peers_.push_back(peer);
      if (is_send(action.op)) ++link.last_run;
      link.messages.push_back({.action = action, .run = link.last_run});
      place_[messages_.number(action)] = static_cast<std::uint32_t>(link.messages.size());
    }
  }

  void add(std::span<const Action> unit, const Program& program) {
    const Action& action = unit.front();
    if (is_receive(action.op)) return;
    if (is_send(action.op)) return send(action);
    if (is_compute(action.op)) ask(unit.size(), program);
    for (const Action& each : unit) result_.push_back(each);
  }

  // Asks for what the next `width` compute actions need, and the lookahead behind the first of
  // them.
  void ask(std::size_t width, const Program& program) {
    const std::size_t end = ran_ + std::max(width, lookahead_ + 1);
    for (; asked_ < end && asked_at_ < program.size(); ++asked_at_) {
      if (!is_compute(program[asked_at_].op)) continue;
      ++asked_;
      if (const auto receive = messages_.received_before(program[asked_at_])) ask_for(*receive);
    }
    ran_ += width;
  }

  void ask_for(const Action& receive) {
    Link& link = links_[messages_.peer_of(receive)];
    const std::size_t end = place_[messages_.number(receive)];
    if (end <= link.placed || end > link.messages.size()) return;
    link.messages[end - 1].asked_for = true;
    if (link.messages[end - 1].run == link.run()) receive_up_to(link, end);
  }

  void receive_up_to(Link& link, std::size_t end) {
    for (; link.placed < end; ++link.placed) result_.push_back(link.messages[link.placed].action);
  }

  // The end of the run that is reached.
  std::size_t end_of_run(const Link& link) const {
    std::size_t end = link.placed;
    while (end < link.messages.size() && is_receive(link.messages[end].action.op)) ++end;
    return end;
  }

  // Receives what comes before the SEND, then what was asked for right behind it.
  void send(const Action& action) {
    Link& link = links_[messages_.peer_of(action)];
    receive_up_to(link, end_of_run(link));
    PENSTOCK_CHECK(link.messages[link.placed].action == action, action);
    receive_up_to(link, link.placed + 1);
    std::size_t end = end_of_run(link);
    while (end > link.placed && !link.messages[end - 1].asked_for) --end;
    receive_up_to(link, end);
  }

  // What nothing uses.
  void end() {
    for (const std::size_t peer : peers_) {
      Link& link = links_[peer];
      receive_up_to(link, link.messages.size());
      link.messages.clear();
      link.placed = link.last_run = 0;
    }
    peers_.clear();
  }

  Messages messages_;
  std::size_t lookahead_;
  std::vector<Link> links_;         // Links by peer.
  std::vector<std::size_t> peers_;  // Peers with messages.
  // Place of each message in its link, from 1, by number of the message.
  std::vector<std::uint32_t> place_;
  std::size_t ran_ = 0;       // Computes in the result.
  std::size_t asked_ = 0;     // Computes whose messages were asked for.
  std::size_t asked_at_ = 0;  // First action behind those computes.
  Program result_;
};

}  // namespace

Schedule place_receives(Schedule schedule, std::int32_t lookahead) {
  PENSTOCK_CHECK(lookahead >= 0, "lookahead ", lookahead);
  Placing placing(schedule, static_cast<std::size_t>(lookahead));
  for (Program& program : schedule.programs) program = placing.run(program);
  return schedule;
}

}  // namespace penstock::schedule
