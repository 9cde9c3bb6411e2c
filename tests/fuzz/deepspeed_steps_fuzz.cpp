#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/plan/schedule/deepspeed/conversion.h"
#include "penstock/verify/verify.h"
#include "tests/fuzz/plan_it.h"
#include "tests/fuzz/targets.h"

namespace penstock::fuzz {
namespace {

using schedule::Schedule;
using schedule::deepspeed::SteppedSchedule;

void check_text(const SteppedSchedule& stepped) {
  const std::string text = to_text(stepped);
  const SteppedSchedule again = schedule::deepspeed::parse_stepped(text, stepped.name);
  PENSTOCK_CHECK(again.stages == stepped.stages, text);
  PENSTOCK_CHECK(again.microbatches == stepped.microbatches, text);
}

void plan_steps(const SteppedSchedule& stepped) {
  try {
    const Schedule schedule = schedule::deepspeed::to_schedule(stepped);
    plan_it(schedule);
    if (!verify::verify(schedule).diagnostics.empty()) return;
    const SteppedSchedule made = schedule::deepspeed::to_stepped(schedule);
    const Schedule again = schedule::deepspeed::to_schedule(made);
    PENSTOCK_CHECK(schedule::deepspeed::to_stepped(again).stages == made.stages, to_text(made));
  } catch (const ScheduleError&) {
    // No such program, or one that this dialect cannot say.
  }
}

}  // namespace

Outcome deepspeed_steps(std::string_view input) {
  SteppedSchedule stepped;
  try {
    stepped = schedule::deepspeed::parse_stepped(input, "input");
  } catch (const ParseError&) {
    return Outcome::Refused;
  }
  check_text(stepped);
  plan_steps(stepped);
  return Outcome::Accepted;
}

}  // namespace penstock::fuzz
