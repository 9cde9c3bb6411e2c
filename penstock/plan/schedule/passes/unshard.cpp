#include <algorithm>
#include <iterator>
#include <list>
#include <ranges>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/plan/schedule/passes/passes.h"

namespace penstock::schedule {
namespace {

using Stages = std::vector<StageId>;

// The stages of a program in the order of their next use.  The program is read from its end: a
// stage that is met is the one whose use is next.
class NextUses {
 public:
  explicit NextUses(std::size_t stages) : place_(stages, order_.end()) {}

  void meet(StageId stage) {
    auto& place = place_[stage.index()];
    if (place == order_.end()) {
      order_.push_front(stage);
    } else {
      order_.splice(order_.begin(), order_, place);
    }
    place = order_.begin();
  }

  Stages first(std::size_t count) const {
    const auto size = static_cast<std::ptrdiff_t>(std::min(count, order_.size()));
    return {order_.begin(), std::next(order_.begin(), size)};
  }

  void clear() {
    for (const StageId stage : order_) place_[stage.index()] = order_.end();
    order_.clear();
  }

 private:
  std::list<StageId> order_;
  // Places by stage; end(): the stage was not met.
  std::vector<std::list<StageId>::iterator> place_;
};

// The overlapped pair or the action that ends at `end`.
std::span<const Action> unit_before(const Program& program, std::size_t end) {
  const std::size_t size = end >= 2 && program[end - 2].overlaps_next ? 2 : 1;
  return std::span(program).subspan(end - size, size);
}

std::size_t stages_of(std::span<const Action> unit) {
  return unit.front().stage == unit.back().stage ? 1 : 2;
}

// Writes one rank's program anew at a time, from its end.
class Sharding {
 public:
  Sharding(std::size_t stages, std::size_t window) : next_uses_(stages), window_(window) {}

  Program run(const Program& program) {
    next_uses_.clear();
    Stages whole;     // While what stands behind runs.
    Program between;  // What stands between two units of compute.
    for (std::size_t end = program.size(); end > 0;) {
      const auto unit = unit_before(program, end);
      end -= unit.size();
      if (!is_compute(unit.front().op)) {
        between.push_back(unit.front());
        continue;
      }
      for (const Action& action : std::views::reverse(unit)) next_uses_.meet(action.stage);
      Stages now = next_uses_.first(std::max(window_, stages_of(unit)));
      change(now, whole);
      result_.insert(result_.end(), between.begin(), between.end());
      result_.insert(result_.end(), unit.rbegin(), unit.rend());
      between.clear();
      whole = std::move(now);
    }
    change({}, whole);
    result_.insert(result_.end(), between.begin(), between.end());
    std::ranges::reverse(result_);
    return std::exchange(result_, {});
  }

 private:
  // Drops weights before it gathers others.
  void change(const Stages& from, const Stages& to) {
    add(to, from, Op::Unshard);
    add(from, to, Op::Reshard);
  }

  void add(const Stages& stages, const Stages& except, Op op) {
    for (const StageId stage : std::views::reverse(stages)) {
      if (std::ranges::find(except, stage) != except.end()) continue;
      result_.push_back({.stage = stage, .op = op});
    }
  }

  NextUses next_uses_;
  std::size_t window_;
  Program result_;  // Backwards.
};

}  // namespace

Schedule add_unshard(Schedule schedule, std::int32_t window) {
  PENSTOCK_CHECK(window >= 1, "window ", window);
  Sharding sharding(static_cast<std::size_t>(schedule.stages), static_cast<std::size_t>(window));
  for (Program& program : schedule.programs) program = sharding.run(program);
  return schedule;
}

}  // namespace penstock::schedule
