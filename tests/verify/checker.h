// A second opinion on schedules, for the tests of verify: slow, short, and sharing nothing with it.
//
// Keeps what has happened as a set of texts ("1F0", "0SEND_F3") and runs all programs in rounds
// until nobody moves; messages are texts in queues.  Knows no codes and no places.
#pragma once
#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "penstock/core/text.h"
#include "penstock/plan/verify/options.h"
#include "penstock/schedule/schedule.h"

namespace penstock::verify {

// The messages of a schedule on their way: each end stands in a queue of its rank.
class Post {
 public:
  Post(Channels channels, const std::map<int, std::size_t>& rank_of)
      : channels_(channels), rank_of_(rank_of) {}

  void add(const schedule::Action& end) {
    const schedule::Action other = schedule::other_end(end);
    const std::string message = str(schedule::is_send(end.op) ? end : other);
    const std::size_t here = rank_of_.at(end.stage.value);
    const std::size_t there = rank_of_.at(other.stage.value);
    const char* kind = schedule::is_send(end.op) ? " sends " : " receives ";
    switch (channels_) {
      case Channels::Tagged:
        queues_[str(here, kind, message)].push_back(message);
        return;
      case Channels::DirFifo:
        queues_[str(here, kind, there)].push_back(message);
        return;
      case Channels::PairFifo:
        queues_[str(here, " with ", there)].push_back(message);
        return;
      case Channels::RankFifo:
        queues_[str(here)].push_back(message);
        return;
    }
  }

  bool is_over(const schedule::Action& send) const { return over_.contains(str(send)); }
  // One message was taken for another.
  bool is_swapped() const { return swapped_; }

  // Lets messages meet until none can.
  void deliver() {
    while (deliver_one()) {
    }
    std::erase_if(queues_, [](const auto& queue) { return queue.second.empty(); });
  }

 private:
  bool deliver_one() {
    for (auto& [one, messages] : queues_) {
      for (auto& [other, others] : queues_) {
        if (one >= other || messages.empty() || others.empty()) continue;
        if (!can_meet(one, messages.front(), other, others.front())) continue;
        swapped_ = swapped_ || messages.front() != others.front();
        over_.insert(messages.front());
        messages.pop_front();
        others.pop_front();
        return true;
      }
    }
    return false;
  }

  bool can_meet(const std::string& one, const std::string& message, const std::string& other,
                const std::string& other_message) const {
    if (channels_ != Channels::DirFifo) return message == other_message;
    const auto words = split(one, ' ');
    const auto other_words = split(other, ' ');
    return words[1] != other_words[1] && words[0] == other_words[2] && words[2] == other_words[0];
  }

  Channels channels_;
  const std::map<int, std::size_t>& rank_of_;
  std::map<std::string, std::deque<std::string>> queues_;
  std::set<std::string> over_;
  bool swapped_ = false;
};

// Why the schedule cannot run or computes something else; "" when it is good.
inline std::string reason_against(const schedule::Schedule& schedule,
                                  Channels channels = Channels::Tagged,
                                  Communication communication = Communication::Overlapped) {
  using schedule::Op;
  const bool trains = schedule.purpose == schedule::Purpose::Train;
  const bool lowered = schedule::is_lowered(schedule);

  std::map<int, std::size_t> rank_of;
  std::multiset<std::string> all;
  for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
    if (schedule.programs[rank].empty()) return str("rank ", rank, " is idle");
    for (const auto& action : schedule.programs[rank]) {
      if (action.op != Op::Unshard && action.op != Op::Reshard) all.insert(str(action));
      if (rank_of.emplace(action.stage.value, rank).first->second != rank) return "two homes";
    }
  }

  // Exactly these actions, each once.
  std::set<std::string> wanted;
  bool any_reduce = false;
  for (const auto& text : all) any_reduce = any_reduce || text.find("REDUCE_GRAD") < text.size();
  for (int s = 0; s < schedule.stages; ++s) {
    const bool reduces_all = all.contains(str(s, "REDUCE_GRAD"));
    if (reduces_all && trains) wanted.insert(str(s, "REDUCE_GRAD"));
    for (int m = 0; m < schedule.microbatches; ++m) {
      if (any_reduce && !reduces_all && trains) wanted.insert(str(s, "REDUCE_GRAD", m));
      wanted.insert(str(s, "F", m));
      const bool split = all.contains(str(s, "I", m)) || all.contains(str(s, "W", m));
      if (trains && !split) wanted.insert(str(s, "B", m));
      if (trains && split) wanted.insert(str(s, "I", m));
      if (trains && split) wanted.insert(str(s, "W", m));
      if (!lowered || s == 0 || !rank_of.contains(s) || !rank_of.contains(s - 1)) continue;
      if (rank_of[s] == rank_of[s - 1]) continue;
      wanted.insert(str(s - 1, "SEND_F", m));
      wanted.insert(str(s, "RECV_F", m));
      if (trains) wanted.insert(str(s, "SEND_B", m));
      if (trains) wanted.insert(str(s - 1, "RECV_B", m));
    }
  }
  if (!std::equal(all.begin(), all.end(), wanted.begin(), wanted.end())) return "wrong actions";

  std::map<std::size_t, bool> sharded;  // True of ranks that are sharded.
  for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
    for (const auto& action : schedule.programs[rank]) {
      if (action.op == Op::Unshard) sharded[rank] = true;
    }
  }
  std::set<int> whole;  // Stages.
  std::set<std::string> done;
  Post post(channels, rank_of);
  const auto has = [&](const auto&... parts) { return done.contains(str(parts...)); };
  const auto can_run = [&](const schedule::Action& action) {
    const int s = action.stage.value;
    const int m = action.microbatch ? action.microbatch->value : 0;
    const auto made = [&](int by, const std::string& op) {
      return has(by, op, m) || (op == "B" && has(by, "I", m));
    };
    const auto arrived = [&](int from, const char* op) {
      if (rank_of[from] == rank_of[s] || !lowered) return made(from, op);
      const bool forward = *op == 'F';
      return has(s, "RECV_", op, m) &&
             post.is_over({.stage = StageId(from),
                           .op = forward ? Op::SendForward : Op::SendBackward,
                           .microbatch = Microbatch(m)});
    };
    if (schedule::is_compute(action.op) && sharded[rank_of[s]] && !whole.contains(s)) return false;
    switch (action.op) {
      case Op::Forward:
        return s == 0 || arrived(s - 1, "F");
      case Op::BackwardWeight:
        return has(s, "I", m);
      case Op::Unshard:
        return !whole.contains(s);
      case Op::Reshard:
        return whole.contains(s);
      case Op::Backward:
      case Op::BackwardInput:
        return has(s, "F", m) && (s + 1 == schedule.stages || arrived(s + 1, "B"));
      case Op::SendForward:
        return has(s, "F", m);
      case Op::SendBackward:
        return made(s, "B");
      case Op::RecvForward:
      case Op::RecvBackward:
        return true;
      case Op::ReduceGradients:
        for (int each = 0; each < schedule.microbatches; ++each) {
          if (action.microbatch && each != m) continue;
          if (!has(s, "B", each) && !has(s, "W", each)) return false;
        }
        return true;
    }
    return false;
  };
  std::vector<std::size_t> next(schedule.programs.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < next.size(); ++rank) {
      const auto& program = schedule.programs[rank];
      while (next[rank] < program.size() && can_run(program[next[rank]])) {
        const std::size_t first = next[rank];
        std::size_t last = first;
        if (program[first].overlaps_next) {
          last = first + 1;
          if (last == program.size() || program[last].op != Op::Backward) return "half a pair";
          if (!can_run(program[last])) break;
        }
        const bool is_message =
            schedule::is_send(program[first].op) || schedule::is_receive(program[first].op);
        if (is_message && !has(program[first])) {
          done.insert(str(program[first]));
          post.add(program[first]);
          moved = true;
        }
        post.deliver();
        if (is_message && communication == Communication::Blocking) {
          const bool sends = schedule::is_send(program[first].op);
          if (!post.is_over(sends ? program[first] : schedule::other_end(program[first]))) break;
        }
        for (std::size_t i = first; i <= last; ++i) {
          done.insert(str(program[i]));
          if (program[i].op == Op::Unshard) whole.insert(program[i].stage.value);
          if (program[i].op == Op::Reshard) whole.erase(program[i].stage.value);
        }
        next[rank] = last + 1;
        moved = true;
      }
    }
  }
  for (std::size_t rank = 0; rank < next.size(); ++rank) {
    if (next[rank] < schedule.programs[rank].size()) {
      return str("rank ", rank, " is stuck at ", schedule.programs[rank][next[rank]]);
    }
  }
  if (post.is_swapped()) return "swapped messages";
  return "";
}

}  // namespace penstock::verify
