#include "penstock/plan/choose/in_flight.h"

#include <algorithm>
#include <set>

#include "penstock/plan/schedule/homes.h"

namespace penstock::choose {
namespace {

using schedule::Op;
using Counts = std::vector<std::int32_t>;

bool reaches(const Counts& a, const Counts& b) {
  return std::ranges::equal(a, b, std::ranges::greater_equal());
}

// The rows that no other one reaches.
std::vector<Counts> largest(const std::set<Counts>& all) {
  std::vector<Counts> kept;
  for (auto each = all.rbegin(); each != all.rend(); ++each) {  // One that reaches it comes first.
    const auto reaches_it = [&](const Counts& other) { return reaches(other, *each); };
    if (std::ranges::none_of(kept, reaches_it)) kept.push_back(*each);
  }
  return kept;
}

// What is in flight is most when a forward has run and none follows.
std::vector<Counts> most_of(const schedule::Program& program, const std::vector<StageId>& stages) {
  std::set<Counts> all;
  Counts now(stages.size());
  bool has_grown = false;
  for (const schedule::Action& action : program) {
    const bool begins = action.op == Op::Forward;
    if (!begins && action.op != Op::Backward && action.op != Op::BackwardInput) continue;
    if (!begins && has_grown) all.insert(now);
    has_grown = begins;
    now[static_cast<std::size_t>(std::ranges::find(stages, action.stage) - stages.begin())] +=
        begins ? 1 : -1;
  }
  return largest(all);
}

Backwards backwards_of(const schedule::Schedule& order) {
  bool has_whole = false, has_halves = false;
  for (const schedule::Program& program : order.programs) {
    for (const schedule::Action& action : program) {
      has_whole |= action.op == Op::Backward;
      has_halves |= action.op == Op::BackwardInput;
    }
  }
  if (!has_halves) return Backwards::Whole;
  return has_whole ? Backwards::Both : Backwards::Halves;
}

bool has_pairs(const schedule::Program& program) {
  return std::ranges::any_of(program, &schedule::Action::overlaps_next);
}

}  // namespace

InFlight in_flight(const schedule::Schedule& order) {
  const schedule::Homes homes(order);
  InFlight found{.homes = homes.of_stages(),
                 .ranks = {},
                 .backwards = backwards_of(order),
                 .has_pairs = std::ranges::any_of(order.programs, has_pairs)};
  for (std::vector<StageId>& stages : homes.stages_of_ranks(order.programs.size())) {
    std::vector<Counts> most = most_of(order.programs[found.ranks.size()], stages);
    found.ranks.push_back({.stages = std::move(stages), .most = std::move(most)});
  }
  return found;
}

}  // namespace penstock::choose
