#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/schedule/action.h"
#include "tests/fuzz/targets.h"

namespace penstock::fuzz {
namespace {

Outcome one_action(std::string_view input) {
  try {
    const schedule::Action action = schedule::parse_action(input);
    PENSTOCK_CHECK(schedule::parse_action(to_string(action)) == action, action);
  } catch (const ParseError&) {
    return Outcome::Refused;
  }
  return Outcome::Accepted;
}

}  // namespace

Outcome action(std::string_view input) {
  const Outcome alone = one_action(input);
  schedule::Program program;
  try {
    schedule::parse_cell(input, program);
  } catch (const ParseError&) {
    PENSTOCK_CHECK(alone == Outcome::Refused, "a cell may hold any action");
    return Outcome::Refused;
  }
  const auto cells = schedule::to_cells(program);
  PENSTOCK_CHECK(cells.size() == 1, cells.size(), " cells");
  schedule::Program again;
  schedule::parse_cell(cells.front(), again);
  PENSTOCK_CHECK(again == program, cells.front());
  return Outcome::Accepted;
}

}  // namespace penstock::fuzz
