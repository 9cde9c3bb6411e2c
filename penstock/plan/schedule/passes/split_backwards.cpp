#include <algorithm>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/plan/schedule/passes/passes.h"

namespace penstock::schedule {
namespace {

Program split(const Program& program, std::size_t delay) {
  Program result;
  result.reserve(2 * program.size());
  Program weights;  // The Ws of the Bs that were split; the first `written` stand in the result.
  std::size_t written = 0;
  const auto write_until = [&](std::size_t left) {
    for (; weights.size() - written > left; ++written) result.push_back(weights[written]);
  };
  for (std::size_t i = 0; i < program.size();) {
    const auto unit = unit_at(program, i);
    i += unit.size();
    PENSTOCK_CHECK(is_compute(unit.front().op), unit.front(), " in a compute order");
    const bool splits = unit.size() == 1 && unit.front().op == Op::Backward;
    if (!splits) {
      result.insert(result.end(), unit.begin(), unit.end());
      continue;
    }
    Action half = unit.front();
    half.op = Op::BackwardInput;
    result.push_back(half);
    half.op = Op::BackwardWeight;
    weights.push_back(half);
    write_until(delay);
  }
  write_until(0);
  return result;
}

}  // namespace

Schedule split_backwards(Schedule order, std::int32_t delay) {
  PENSTOCK_CHECK(delay >= 0, "delay ", delay);
  for (Program& program : order.programs) program = split(program, static_cast<std::size_t>(delay));
  return order;
}

}  // namespace penstock::schedule
