#include "penstock/plan/lower/device_proof.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "penstock/core/text.h"
#include "penstock/plan/exchange/code.h"

namespace penstock::lower {
namespace {

// One end of a message on its device.
struct DeviceEnd {
  bool is_posted = false;
  bool is_given = false;
  std::size_t behind = 0;  // Entries of the stream that computes that come before it.
  std::int32_t held = 0;   // Multiprocessors.
};

// Runs all ranks in the order that holds multiprocessors as long as can be.
class DeviceReplay {
 public:
  DeviceReplay(const DeviceOrder& order, const Multiprocessors& multiprocessors)
      : order_(order), multiprocessors_(multiprocessors), messages_(order.messages.size()) {
    for (std::size_t r = 0; r < order.ranks.size(); ++r) {
      ranks_.emplace_back().free = multiprocessors.of_device;
    }
    for (std::size_t m = 0; m < messages_.size(); ++m) {
      const DeviceMessage& message = order.messages[m];
      messages_[m].send = &ranks_[message.from.index()].streams[message.stream(/*sends=*/true)];
      messages_[m].receive = &ranks_[message.to.index()].streams[message.stream(/*sends=*/false)];
    }
    meetings_.resize(order.groups.size());
  }

  // Whether all ends.
  bool run() {
    while (true) {
      if (advance_hosts() || begin_all(/*sends=*/true) || begin_all(/*sends=*/false) ||
          end_messages() || compute()) {
        continue;
      }
      break;
    }
    return std::ranges::all_of(ranks_, [this](const State& each) { return is_over(each); });
  }

  // Who waits for whom, as far as it goes round.
  std::string circle() const {
    std::vector<std::size_t> way;
    std::size_t rank = 0;
    while (is_over(ranks_[rank])) ++rank;
    std::vector<std::string> words;
    while (std::ranges::find(way, rank) == way.end()) {
      way.push_back(rank);
      const auto [text, next] = wait_of(rank);
      words.push_back(text);
      rank = next;
    }
    const auto first = std::ranges::find(way, rank) - way.begin();
    return join(std::vector(words.begin() + first, words.end()), "; ");
  }

 private:
  using Stream = std::deque<std::int32_t>;  // Messages in their order, until they are over.
  struct Message {
    Stream* send = nullptr;
    Stream* receive = nullptr;
    DeviceEnd from, to;
    bool is_announced = false;
    bool is_over = false;
  };
  struct Entry {
    std::int32_t awaits = -1;  // A message; -1: a kernel.
    std::int32_t place = 0;
  };
  struct State {
    std::size_t call = 0;        // The host's next.
    std::vector<Entry> entries;  // The stream that computes.
    std::size_t done = 0;
    std::map<DeviceStream, Stream> streams;
    std::map<Rank, Stream> announced;  // Messages from a rank that it has not begun to receive.
    std::int32_t free = 0;
    std::int64_t kernels = 0;
    bool may_send = true, may_receive = true;  // Something has changed since it was tried.
    std::optional<std::int64_t> meeting;       // The one that it is in.
  };

  const std::vector<DeviceCall>& calls(const State& state) const {
    return order_.ranks[static_cast<std::size_t>(&state - ranks_.data())];
  }
  bool is_over(const State& state) const {
    return state.call == calls(state).size() && state.done == state.entries.size() &&
           std::ranges::all_of(state.streams, [](const auto& each) { return each.second.empty(); });
  }

  bool advance_hosts() {
    bool any = false;
    for (State& state : ranks_) {
      pass_awaits(state);
      while (state.call < calls(state).size() && make(state, calls(state)[state.call])) {
        ++state.call;
        any = true;
      }
      pass_awaits(state);
    }
    return any;
  }

  bool make(State& state, const DeviceCall& call) {
    const auto what = static_cast<std::size_t>(call.what);
    switch (call.does) {
      case DeviceCall::Does::Compute:
        state.entries.push_back({.place = call.place});
        return true;
      case DeviceCall::Does::Await:
        state.entries.push_back({.awaits = call.what, .place = call.place});
        return true;
      case DeviceCall::Does::Send: {
        Message& message = messages_[what];
        give(message.from, *message.send, call.what, state);
        message.is_announced = true;
        const DeviceMessage& sent = order_.messages[what];
        ranks_[sent.to.index()].announced[sent.from].push_back(call.what);
        return true;
      }
      case DeviceCall::Does::Post: {
        DeviceEnd& end = messages_[what].to;
        if (end.is_given) return true;  // It was kept in memory of its own.
        end.is_posted = true;
        end.behind = state.entries.size();
        return true;
      }
      case DeviceCall::Does::Begin: {
        if (!messages_[what].is_announced) return false;
        Stream& heard = state.announced[order_.messages[what].from];
        while (!messages_[what].to.is_given) {
          Message& next = messages_[static_cast<std::size_t>(heard.front())];
          give(next.to, *next.receive, heard.front(), state);
          heard.pop_front();
        }
        return true;
      }
      case DeviceCall::Does::AwaitDevice:
        pass_awaits(state);
        return state.done == state.entries.size();
      case DeviceCall::Does::Meet:
        return meet(state, what);
    }
    return false;
  }

  static void change(State& state) { state.may_send = state.may_receive = true; }

  static void give(DeviceEnd& end, Stream& stream, std::int32_t message, State& state) {
    change(state);
    if (!end.is_posted) end.behind = state.entries.size();
    end.is_given = true;
    stream.push_back(message);
  }

  bool meet(State& state, std::size_t group) {
    Meeting& meeting = meetings_[group];
    if (!state.meeting) {
      state.meeting = meeting.number;
      if (++meeting.arrived == order_.groups[group].size()) {
        meeting.arrived = 0;
        ++meeting.number;
      }
    }
    if (*state.meeting == meeting.number) return false;
    state.meeting.reset();
    return true;
  }

  void pass_awaits(State& state) {
    while (state.done < state.entries.size()) {
      const std::int32_t awaits = state.entries[state.done].awaits;
      if (awaits < 0 || !messages_[static_cast<std::size_t>(awaits)].is_over) return;
      ++state.done;
      change(state);
    }
  }

  DeviceEnd& end_of(std::int32_t message, bool sends) {
    Message& of = messages_[static_cast<std::size_t>(message)];
    return sends ? of.from : of.to;
  }
  bool is_whole(const DeviceEnd& end) const { return end.held == multiprocessors_.held; }

  // Begins all that can, on ranks where something has changed since it was tried.
  bool begin_all(bool sends) {
    bool any = false;
    for (State& state : ranks_) {
      if (!std::exchange(sends ? state.may_send : state.may_receive, false) || state.free == 0) {
        continue;
      }
      for (auto& [key, stream] : state.streams) {
        if (key.sends != sends || stream.empty()) continue;
        DeviceEnd& end = end_of(stream.front(), sends);
        if (is_whole(end) || state.free == 0 || state.done < end.behind) continue;
        const std::int32_t taken = std::min(state.free, multiprocessors_.held - end.held);
        state.free -= taken;
        end.held += taken;
        any = true;
        if (is_whole(end)) begun_.push_back(stream.front());
      }
    }
    return any;
  }

  // Both ends of what has begun at both are first in their streams.
  bool end_messages() {
    bool any = false;
    for (const std::int32_t number : std::exchange(begun_, {})) {
      Message& message = messages_[static_cast<std::size_t>(number)];
      if (message.is_over || !is_whole(message.from) || !is_whole(message.to)) continue;
      const DeviceMessage& of = named(number);
      const auto let_go = [&](State& state, Stream& stream, std::int32_t held) {
        state.free += held;
        stream.pop_front();
        change(state);
      };
      let_go(ranks_[of.from.index()], *message.send, message.from.held);
      let_go(ranks_[of.to.index()], *message.receive, message.to.held);
      message.is_over = true;
      any = true;
    }
    return any;
  }

  // A kernel of the ranks that are furthest behind.
  bool compute() {
    std::optional<std::int64_t> least;
    const auto can = [](const State& each) {
      return each.done < each.entries.size() && each.entries[each.done].awaits < 0 && each.free > 0;
    };
    for (const State& each : ranks_) {
      if (can(each)) least = std::min(least.value_or(each.kernels), each.kernels);
    }
    if (!least) return false;
    for (State& each : ranks_) {
      if (!can(each) || each.kernels != *least) continue;
      ++each.done;
      change(each);
      ++each.kernels;
      pass_awaits(each);
    }
    return true;
  }

  const DeviceMessage& named(std::int32_t message) const {
    return order_.messages[static_cast<std::size_t>(message)];
  }
  std::size_t other_end(std::int32_t message, std::size_t rank) const {
    return named(message).other(Rank(rank)).index();
  }

  std::string message_text(std::int32_t message) const {
    const DeviceMessage& of = named(message);
    return str("a message from rank ", of.from, " to rank ", of.to);
  }

  // What keeps a rank from going on, and the rank that it waits for.
  std::pair<std::string, std::size_t> wait_of(std::size_t rank) const {
    const State& state = ranks_[rank];
    const auto peer_of = [&](std::int32_t message) { return other_end(message, rank); };
    if (state.done < state.entries.size()) {
      const Entry& next = state.entries[state.done];
      const std::string& place = order_.places[static_cast<std::size_t>(next.place)];
      if (next.awaits >= 0) {
        const Message& message = messages_[static_cast<std::size_t>(next.awaits)];
        const bool sends = named(next.awaits).from.index() == rank;
        const Stream& stream = sends ? *message.send : *message.receive;
        if (!stream.empty() && stream.front() != next.awaits &&
            std::ranges::find(stream, next.awaits) != stream.end()) {
          return {
              str("rank ", rank, " computes nothing behind ", place, " before ",
                  message_text(next.awaits), ", which comes behind ", message_text(stream.front())),
              peer_of(stream.front())};
        }
        if (state.free == 0 && !is_whole(sends ? message.from : message.to)) {
          return full(rank, str("rank ", rank, " cannot begin to ", sends ? "send " : "receive ",
                                message_text(next.awaits)));
        }
        return {str("rank ", rank, " computes nothing behind ", place, " before ",
                    message_text(next.awaits)),
                peer_of(next.awaits)};
      }
      if (state.free == 0) return full(rank, str("rank ", rank, " cannot compute ", place));
    }
    if (state.call < calls(state).size()) {
      const DeviceCall& call = calls(state)[state.call];
      const std::string& place = order_.places[static_cast<std::size_t>(call.place)];
      if (call.does == DeviceCall::Does::Begin) {
        return {str("rank ", rank, " waits at ", place, " for ", message_text(call.what)),
                peer_of(call.what)};
      }
      if (call.does == DeviceCall::Does::Meet) {
        for (const Rank other : order_.groups[static_cast<std::size_t>(call.what)]) {
          if (!ranks_[other.index()].meeting) {
            return {str("rank ", rank, " waits at ", place, " for rank ", other), other.index()};
          }
        }
      }
    }
    if (state.free == 0) return full(rank, str("rank ", rank, " cannot go on"));
    for (const auto& [key, stream] : state.streams) {
      if (!stream.empty()) {
        return {str("rank ", rank, " waits for ", message_text(stream.front())),
                peer_of(stream.front())};
      }
    }
    return {str("rank ", rank, " has ended"), rank};
  }

  std::pair<std::string, std::size_t> full(std::size_t rank, const std::string& what) const {
    const State& state = ranks_[rank];
    std::int32_t kernels = 0;
    // Whose end has not begun though there is room, and else the first one.
    std::pair<bool, std::size_t> other = {true, ranks_.size()};
    for (const auto& [key, stream] : state.streams) {
      if (stream.empty()) continue;
      const Message& message = messages_[static_cast<std::size_t>(stream.front())];
      const DeviceEnd& end = key.sends ? message.from : message.to;
      if (end.held == 0) continue;
      ++kernels;
      const DeviceEnd& far = key.sends ? message.to : message.from;
      const std::size_t there = other_end(stream.front(), rank);
      other = std::min(other, {is_whole(far) || ranks_[there].free == 0, there});
    }
    return {str(what, ": ", kernels, " kernels that wait for other ranks hold all ",
                multiprocessors_.of_device, " multiprocessors"),
            other.second == ranks_.size() ? rank : other.second};
  }

  struct Meeting {
    std::size_t arrived = 0;
    std::int64_t number = 0;  // Meetings that have been.
  };

  const DeviceOrder& order_;
  Multiprocessors multiprocessors_;
  std::vector<State> ranks_;
  std::vector<Message> messages_;
  std::vector<std::int32_t> begun_;  // Messages of which an end has begun since it was looked.
  std::vector<Meeting> meetings_;    // Meetings of each group.
};

}  // namespace

DeviceProof prove(const DeviceOrder& order, const Multiprocessors& multiprocessors) {
  DeviceProof proof;
  const std::vector<std::int32_t> streams = order.message_streams();
  if (!streams.empty()) proof.held_max = std::ranges::max(streams) * multiprocessors.held;
  proof.is_of_every_order = proof.held_max < multiprocessors.of_device;
  DeviceReplay replay(order, multiprocessors);
  if (replay.run()) return proof;
  proof.is_of_every_order = false;
  const std::int32_t enough = proof.held_max + 1;
  const bool has_room =
      multiprocessors.of_device >= enough ||
      !DeviceReplay(order, {.of_device = enough, .held = multiprocessors.held}).run();
  proof.objection = exchange::coded(
      has_room ? exchange::Code::MessagesInACircle : exchange::Code::NoMultiprocessor,
      replay.circle());
  return proof;
}

}  // namespace penstock::lower
