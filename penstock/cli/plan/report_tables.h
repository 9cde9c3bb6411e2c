// The tables of `penstock report`: the same ones for the terminal and for the page.
//
// Knows how numbers are shown, not where they come from or go.
// Units: milliseconds; of a drift, measured minus simulated.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "penstock/plan/measure/drift.h"
#include "penstock/plan/measure/fit.h"
#include "penstock/plan/measure/run_events.h"
#include "penstock/plan/render/timeline_page.h"

namespace penstock::cli {

// Milliseconds with as many decimals as a ten-thousandth of the longest time has.
class TimeText {
 public:
  explicit TimeText(double longest);
  std::string operator()(double ms) const;
  // Milliseconds with a sign: "+0.5".
  std::string signed_text(double ms) const;

 private:
  int decimals_ = 0;
};

render::Table costs_table(const measure::Fit& fit, const TimeText& text);
render::Table ranks_table(const measure::MeasuredStep& measured,
                          const simulate::Simulation& simulated, const TimeText& text);
// The `count` exchanges with ranks that share layers that held their ranks longest, by name.
render::Table exchanges_table(const measure::MeasuredStep& measured, std::size_t count,
                              const TimeText& text);
render::Table ops_table(const std::vector<measure::Drift>& drifts, const TimeText& text);

// The `count` actions whose duration, or whose start, is farthest from the simulated one.
render::Table worst_durations_table(std::vector<measure::Drift> drifts, std::size_t count,
                                    const TimeText& text);
render::Table worst_starts_table(std::vector<measure::Drift> drifts, std::size_t count,
                                 const TimeText& text);

// What happened to the run, in order.  Saves without anything between them are one row.
render::Table events_table(std::span<const measure::RunEvent> events);

// Lines of text, below the table's title and note.
std::string to_text(const render::Table& table);

}  // namespace penstock::cli
