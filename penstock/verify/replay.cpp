#include "penstock/verify/replay.h"

#include <algorithm>
#include <map>
#include <utility>

#include "penstock/core/text.h"
#include "penstock/verify/table.h"

namespace penstock::verify {
namespace {

using schedule::Action;
using schedule::Op;
using schedule::Program;
using schedule::Schedule;

class Replay {
 public:
  Replay(const Schedule& schedule, const std::vector<Rank>& rank_of_stage)
      : schedule_(schedule),
        rank_of_stage_(rank_of_stage),
        lowered_(schedule::is_lowered(schedule)),
        table_(schedule.stages, schedule.microbatches),
        done_(table_.cells(), false),
        waiter_(table_.cells(), kNobody),
        next_(schedule.programs.size(), 0) {}

  std::optional<Diagnostic> run() {
    for (std::size_t rank = 0; rank < next_.size(); ++rank) ready_.push_back(rank);
    while (!ready_.empty()) {
      const std::size_t rank = ready_.back();
      ready_.pop_back();
      advance(rank);
    }
    for (std::size_t rank = 0; rank < next_.size(); ++rank) {
      if (next_[rank] < schedule_.programs[rank].size()) return deadlock(rank);
    }
    return {};
  }

 private:
  static constexpr std::size_t kNobody = static_cast<std::size_t>(-1);

  const Action& head(std::size_t rank) const { return schedule_.programs[rank][next_[rank]]; }

  // How many actions start together: 2 at an overlapped pair.
  std::size_t width(std::size_t rank) const { return head(rank).overlaps_next ? 2 : 1; }

  // What the next action of `rank`, or either half of an overlapped pair, still waits for.
  std::optional<Action> unmet(std::size_t rank) const {
    for (std::size_t i = 0; i < width(rank); ++i) {
      if (const auto awaited = unmet(schedule_.programs[rank][next_[rank] + i])) return awaited;
    }
    return {};
  }

  // The action on another rank that `action` still waits for.  Order within the rank has been
  // checked, so what stands before `action` in its own program is done.
  std::optional<Action> unmet(const Action& action) const {
    if (!schedule::is_compute(action.op)) return {};
    const auto arrival = needs_of(action, schedule_.stages).arrival;
    if (!arrival) return {};
    Action awaited = *arrival;
    const bool remote =
        rank_of_stage_[arrival->stage.index()] != rank_of_stage_[action.stage.index()];
    if (remote && lowered_) {
      awaited.op = arrival->op == Op::Forward ? Op::SendForward : Op::SendBackward;
    }
    if (done_[table_.cell(awaited)]) return {};
    return awaited;
  }

  void advance(std::size_t rank) {
    while (next_[rank] < schedule_.programs[rank].size()) {
      if (const auto awaited = unmet(rank)) {
        waiter_[table_.cell(*awaited)] = rank;
        return;
      }
      for (std::size_t left = width(rank); left > 0; --left) {
        const std::size_t cell = table_.cell(value_of(head(rank)));
        done_[cell] = true;
        ++next_[rank];
        if (waiter_[cell] != kNobody && waiter_[cell] != rank) ready_.push_back(waiter_[cell]);
      }
    }
  }

  // The action itself where unmet() names what it makes.
  Action spelt_out(const Action& awaited) const {
    if (awaited.op != Op::Backward) return awaited;
    const Program& program = schedule_.programs[rank_of_stage_[awaited.stage.index()].index()];
    const bool whole = std::ranges::find(program, awaited) != program.end();
    return {.stage = awaited.stage,
            .op = whole ? Op::Backward : Op::BackwardInput,
            .microbatch = awaited.microbatch};
  }

  Diagnostic deadlock(std::size_t rank) const {
    // Every stuck rank waits for another stuck rank, so following the waits ends in a cycle.
    std::map<std::size_t, bool> seen;
    while (!std::exchange(seen[rank], true)) rank = awaited_rank(rank);
    Diagnostic diagnostic{.code = Code::Deadlock,
                          .rank = Rank(rank),
                          .step = static_cast<std::int32_t>(next_[rank]),
                          .message = str(head(rank), " waits for itself: deadlock")};
    std::size_t at = rank;
    do {
      const Action awaited = spelt_out(unmet(at).value());
      diagnostic.notes.push_back(str("rank ", at, " step ", next_[at], ": ", head(at),
                                     " waits for ", awaited, " of rank ", awaited_rank(at)));
      at = awaited_rank(at);
    } while (at != rank);
    return diagnostic;
  }

  std::size_t awaited_rank(std::size_t rank) const {
    return rank_of_stage_[unmet(rank).value().stage.index()].index();
  }

  const Schedule& schedule_;
  const std::vector<Rank>& rank_of_stage_;
  bool lowered_;
  Table table_;  // Only its numbering of cells.
  std::vector<bool> done_;
  std::vector<std::size_t> waiter_;  // By cell: the rank that waits for it.
  std::vector<std::size_t> next_;    // By rank: the first action not yet run.
  std::vector<std::size_t> ready_;
};

}  // namespace

std::optional<Diagnostic> replay(const Schedule& schedule, const std::vector<Rank>& rank_of_stage) {
  return Replay(schedule, rank_of_stage).run();
}

}  // namespace penstock::verify
