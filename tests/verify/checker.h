// A second opinion on schedules, for the tests of verify: slow, short, and sharing nothing with it.
//
// Keeps what has happened as a set of texts ("1F0", "0SEND_F3") and runs all programs in rounds
// until nobody moves.  Knows no codes and no places.
#pragma once
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "penstock/core/text.h"
#include "penstock/schedule/schedule.h"

namespace penstock::verify {

// Why the schedule cannot run or computes something else; "" when it is good.
inline std::string reason_against(const schedule::Schedule& schedule) {
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

  std::map<std::size_t, bool> sharded;  // By rank.
  for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
    for (const auto& action : schedule.programs[rank]) {
      if (action.op == Op::Unshard) sharded[rank] = true;
    }
  }
  std::set<int> whole;  // Stages.
  std::set<std::string> done;
  const auto has = [&](const auto&... parts) { return done.contains(str(parts...)); };
  const auto can_run = [&](const schedule::Action& action) {
    const int s = action.stage.value;
    const int m = action.microbatch ? action.microbatch->value : 0;
    const auto made = [&](int by, const std::string& op) {
      return has(by, op, m) || (op == "B" && has(by, "I", m));
    };
    const auto arrived = [&](int from, const char* op) {
      if (rank_of[from] == rank_of[s] || !lowered) return made(from, op);
      return has(from, "SEND_", op, m) && has(s, "RECV_", op, m);
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
  return "";
}

}  // namespace penstock::verify
