#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/measure/measured_step.h"
#include "penstock/measure/recording.h"
#include "tests/fuzz/targets.h"

namespace penstock::fuzz {
namespace {

// Beside a schedule that is not its own, a timeline is refused, or read to its end.
void read_steps(const measure::Recording& recording) {
  static const auto schedule = verify::VerifiedSchedule::from(
      schedule::parse_csv("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", "fixed"));
  for (const std::int64_t step : measure::steps_of(recording)) {
    try {
      measure::measured_step(recording, schedule, step, 0);
    } catch (const ScheduleError&) {
    }
  }
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
  read_steps(recording);
  return Outcome::Accepted;
}

}  // namespace penstock::fuzz
