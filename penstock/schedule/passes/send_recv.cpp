#include <algorithm>
#include <optional>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/schedule/passes/passes.h"

namespace penstock::schedule {
namespace {

// The rank that holds each stage.
std::vector<std::size_t> placement(const Schedule& schedule) {
  std::vector<std::size_t> rank_of(static_cast<std::size_t>(schedule.stages), 0);
  for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
    for (const Action& action : schedule.programs[rank]) {
      rank_of[action.stage.index()] = rank;
    }
  }
  return rank_of;
}

// The SEND that carries what a compute action makes, if a stage on another rank wants it.
std::optional<Action> send_after(const Action& action, const std::vector<std::size_t>& rank_of) {
  const bool forward = action.op == Op::Forward;
  const std::int32_t to = action.stage.value + (forward ? 1 : -1);
  if (!is_compute(action.op) || to < 0 || to >= static_cast<std::int32_t>(rank_of.size()) ||
      rank_of[StageId(to).index()] == rank_of[action.stage.index()]) {
    return {};
  }
  return Action{action.stage, forward ? Op::SendForward : Op::SendBackward, action.microbatch};
}

// The RECV that brings what a compute action needs, if a stage on another rank makes it.
std::optional<Action> receive_before(const Action& action,
                                     const std::vector<std::size_t>& rank_of) {
  const bool forward = action.op == Op::Forward;
  const std::int32_t from = action.stage.value + (forward ? -1 : 1);
  if (!is_compute(action.op) || from < 0 || from >= static_cast<std::int32_t>(rank_of.size()) ||
      rank_of[StageId(from).index()] == rank_of[action.stage.index()]) {
    return {};
  }
  return Action{action.stage, forward ? Op::RecvForward : Op::RecvBackward, action.microbatch};
}

Program communicate(const Program& program, const std::vector<std::size_t>& rank_of,
                    std::size_t lookahead) {
  std::vector<Action> computes;
  for (const Action& action : program) {
    if (is_compute(action.op)) computes.push_back(action);
  }
  Program result;
  std::size_t next_compute = 0;  // Computes emitted so far.
  std::size_t next_receive = 0;  // Computes whose receive has been posted.
  for (const Action& action : program) {
    if (is_compute(action.op)) {
      const std::size_t posted_end = std::min(next_compute + lookahead + 1, computes.size());
      for (; next_receive < posted_end; ++next_receive) {
        if (const auto receive = receive_before(computes[next_receive], rank_of)) {
          result.push_back(*receive);
        }
      }
      ++next_compute;
    }
    result.push_back(action);
    if (const auto send = send_after(action, rank_of)) result.push_back(*send);
  }
  return result;
}

}  // namespace

Schedule add_send_recv(const Schedule& schedule, std::int32_t lookahead) {
  PENSTOCK_CHECK(lookahead >= 0, "lookahead ", lookahead);
  Schedule lowered = schedule;
  const auto rank_of = placement(schedule);
  for (Program& program : lowered.programs) {
    program = communicate(program, rank_of, static_cast<std::size_t>(lookahead));
  }
  return lowered;
}

Schedule lower_communication(const Schedule& schedule) {
  return add_send_recv(add_reduce_gradients(schedule));
}

}  // namespace penstock::schedule
