#include <algorithm>
#include <iterator>
#include <optional>
#include <span>
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

// The direction in which a compute action takes and hands on values: +1 to later stages, -1 to
// earlier ones, 0 when it stays on its stage.
std::int32_t direction_of(Op op) {
  if (op == Op::Forward) return 1;
  return op == Op::Backward || op == Op::BackwardInput ? -1 : 0;
}

bool crosses_ranks(StageId stage, std::int32_t offset, const std::vector<std::size_t>& rank_of) {
  const std::int32_t other = stage.value + offset;
  return offset != 0 && other >= 0 && other < static_cast<std::int32_t>(rank_of.size()) &&
         rank_of[StageId(other).index()] != rank_of[stage.index()];
}

// The SEND that carries what a compute action makes, if a stage on another rank wants it.
std::optional<Action> send_after(const Action& action, const std::vector<std::size_t>& rank_of) {
  const std::int32_t direction = direction_of(action.op);
  if (!crosses_ranks(action.stage, direction, rank_of)) return {};
  return Action{.stage = action.stage,
                .op = direction > 0 ? Op::SendForward : Op::SendBackward,
                .microbatch = action.microbatch};
}

// The RECV that brings what a compute action needs, if a stage on another rank makes it.
std::optional<Action> receive_before(const Action& action,
                                     const std::vector<std::size_t>& rank_of) {
  const std::int32_t direction = direction_of(action.op);
  if (!crosses_ranks(action.stage, -direction, rank_of)) return {};
  return Action{.stage = action.stage,
                .op = direction > 0 ? Op::RecvForward : Op::RecvBackward,
                .microbatch = action.microbatch};
}

class Communicating {
 public:
  Communicating(const Program& program, const std::vector<std::size_t>& rank_of,
                std::size_t lookahead)
      : program_(program), rank_of_(rank_of), lookahead_(lookahead) {
    std::ranges::copy_if(program, std::back_inserter(computes_),
                         [](const Action& action) { return is_compute(action.op); });
  }

  Program run() {
    for (std::size_t i = 0; i < program_.size();) {
      // Nothing comes between the two of an overlapped pair.
      const std::size_t width = program_[i].overlaps_next ? 2 : 1;
      const std::span<const Action> together = std::span(program_).subspan(i, width);
      if (is_compute(program_[i].op)) receive(width);
      result_.insert(result_.end(), together.begin(), together.end());
      for (const Action& action : together) {
        if (const auto send = send_after(action, rank_of_)) result_.push_back(*send);
      }
      i += width;
    }
    return std::move(result_);
  }

 private:
  // Posts what the next `width` compute actions need, and the lookahead behind the first of them.
  void receive(std::size_t width) {
    const std::size_t end = std::min(ran_ + std::max(width, lookahead_ + 1), computes_.size());
    for (; posted_ < end; ++posted_) {
      if (const auto receive = receive_before(computes_[posted_], rank_of_)) {
        result_.push_back(*receive);
      }
    }
    ran_ += width;
  }

  const Program& program_;
  const std::vector<std::size_t>& rank_of_;
  std::size_t lookahead_;
  std::vector<Action> computes_;
  Program result_;
  std::size_t ran_ = 0;     // Computes emitted so far.
  std::size_t posted_ = 0;  // Computes whose receive has been posted.
};

}  // namespace

Schedule add_send_recv(const Schedule& schedule, std::int32_t lookahead) {
  PENSTOCK_CHECK(lookahead >= 0, "lookahead ", lookahead);
  Schedule lowered = schedule;
  const auto rank_of = placement(schedule);
  for (Program& program : lowered.programs) {
    program = Communicating(program, rank_of, static_cast<std::size_t>(lookahead)).run();
  }
  return lowered;
}

Schedule lower_communication(const Schedule& schedule) {
  return add_send_recv(add_reduce_gradients(schedule));
}

}  // namespace penstock::schedule
