#include <array>
#include <vector>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/plan/measure/drift.h"
#include "penstock/plan/measure/fit.h"
#include "penstock/plan/measure/recording.h"
#include "penstock/plan/render/measured_timeline.h"
#include "penstock/plan/render/simulated_timeline.h"
#include "penstock/plan/render/timeline_page.h"
#include "tests/fuzz/targets.h"

namespace penstock::fuzz {
namespace {

using measure::MeasuredStep;
using verify::VerifiedSchedule;

VerifiedSchedule beside(const char* csv) {
  return VerifiedSchedule::from(schedule::parse_csv(csv, "fixed"));
}

// What a folder may hold beside a timeline: a program that trains; two that cannot have trained.
const std::array<VerifiedSchedule, 3>& schedules() {
  static const std::array<VerifiedSchedule, 3> all = {
      beside("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
      beside("0F0,0SEND_F0\n1RECV_F0,1F0\n"), beside("0F0,0B0\n1F0,1B0\n")};
  return all;
}

// As `penstock report` does.
void report(const measure::Recording& recording, const VerifiedSchedule& schedule) {
  std::vector<MeasuredStep> steps;
  for (const std::int64_t step : measure::steps_of(recording)) {
    steps.push_back(measure::measured_step(recording, schedule, step, 0));
  }
  if (steps.empty()) return;
  const auto simulation = simulate::simulate(schedule, measure::fit(steps, schedule).costs);
  measure::by_op(measure::drifts(steps.front(), simulation));
  const std::array timelines = {render::measured_timeline(schedule, steps.front()),
                                render::simulated_timeline(schedule, simulation)};
  render::timeline_page("both", timelines);
}

}  // namespace

Outcome recording(std::string_view input) {
  measure::Recording recording;
  try {
    recording = measure::parse_recording(input, "input");
  } catch (const ParseError&) {
    return Outcome::Refused;
  }
  PENSTOCK_CHECK(measure::parse_recording(measure::to_text(recording), "input") == recording,
                 input);
  for (const VerifiedSchedule& schedule : schedules()) {
    try {
      report(recording, schedule);
    } catch (const ScheduleError&) {
      // Beside a schedule that is not its own, a timeline is refused.
    }
  }
  return Outcome::Accepted;
}

}  // namespace penstock::fuzz
