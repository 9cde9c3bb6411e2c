#include "penstock/core/check.h"
#include "penstock/plan/measure/run_events.h"
#include "penstock/plan/render/run_marks.h"
#include "tests/fuzz/targets.h"

namespace penstock::fuzz {

Outcome run_events(std::string_view input) {
  const measure::RunEvents parsed = measure::parse_run_events(input, "input");
  PENSTOCK_CHECK((parsed.unreadable > 0) == !parsed.why_unreadable.empty(), parsed.unreadable);
  std::string again;
  for (const measure::RunEvent& event : parsed.events) again += measure::to_line(event);
  PENSTOCK_CHECK(measure::parse_run_events(again, "again").events == parsed.events, again);
  const measure::RunHistory history = measure::history_of(parsed.events);
  measure::lines_of(history);
  // As `penstock report` does.
  render::loss_svg({.train = {{1, 2}, {9, 1}}, .marks = render::run_marks(history)});
  return parsed.unreadable > 0 ? Outcome::Refused : Outcome::Accepted;
}

}  // namespace penstock::fuzz
