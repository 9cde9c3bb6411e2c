// Writes what ranks did, and when, as a trace for chrome://tracing and ui.perfetto.dev.
//
// The trainer turns the executor's events into rows and calls this.  Knows no instruction: names
// and categories are the caller's. Units: microseconds, printed with three decimals. Source: the
// "JSON Array Format" of the Trace Event Format, complete ("X") and metadata events.
#pragma once
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::render {

inline constexpr int kComputeThread = 0;
inline constexpr int kCommunicationThread = 1;

struct TraceEvent {
  std::string name;             // "1F3"
  std::string category;         // "compute" or "communication".
  int process = 0;              // The rank.
  int thread = kComputeThread;  // Or kCommunicationThread.
  double start_us = 0;
  double duration_us = 0;
  std::vector<std::pair<std::string, std::string>> args;  // Shown when the event is selected.
};

// One JSON object: a name for every rank and thread that occurs, by rising rank, then the events in
// the order given, a line each.
// REQUIRES: times are finite.
void write_chrome_trace(std::ostream& out, std::span<const TraceEvent> events);

// The same as text.
std::string chrome_trace(std::span<const TraceEvent> events);

}  // namespace penstock::render
