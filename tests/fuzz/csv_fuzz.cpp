#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/plan/schedule/timetable.h"
#include "penstock/schedule/schedule.h"
#include "tests/fuzz/plan_it.h"
#include "tests/fuzz/targets.h"

namespace penstock::fuzz {
namespace {

using schedule::Schedule;

void check_text(const Schedule& schedule) {
  const std::string text = schedule::to_csv(schedule);
  const Schedule again = schedule::parse_csv(text, schedule.name);
  PENSTOCK_CHECK(again.programs == schedule.programs, text);
  PENSTOCK_CHECK(again.stages == schedule.stages, text);
  PENSTOCK_CHECK(again.microbatches == schedule.microbatches, text);
  PENSTOCK_CHECK(again.purpose == schedule.purpose, text);
}

// A row of one idle slot prints as one without any.
void check_slots(std::string_view input) {
  const schedule::Timetable table = schedule::parse_timetable(input, "input");
  const std::string text = schedule::to_csv(table);
  PENSTOCK_CHECK(schedule::parse_timetable(text, "input") == table, text);
}

}  // namespace

Outcome csv(std::string_view input) {
  Schedule schedule;
  try {
    schedule = schedule::parse_csv(input, "input");
  } catch (const ParseError&) {
    return Outcome::Refused;
  }
  check_text(schedule);
  check_slots(input);
  plan_it(schedule);
  return Outcome::Accepted;
}

}  // namespace penstock::fuzz
