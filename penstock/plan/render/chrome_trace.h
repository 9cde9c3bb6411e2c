// Writes what ranks did, and when, as a trace for chrome://tracing and ui.perfetto.dev.
//
// recording_trace.h makes the events of a recording, timeline_trace.h those of a timeline.  Knows
// no action: names and categories are the caller's. Units: microseconds, printed with three
// decimals. Source: the "JSON Array Format" of the Trace Event Format, complete ("X"), counter
// ("C") and metadata events.
#pragma once
#include <ostream>
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
  int thread = kComputeThread;  // kComputeThread or kCommunicationThread.
  double start_us = 0;
  double duration_us = 0;
  std::vector<std::pair<std::string, std::string>> args;  // Shown when the event is selected.
};

// A number of one process over time, drawn as a curve: it holds until the next one of that name.
struct TraceCounter {
  std::string name;
  int process = 0;
  double time_us = 0;
  double value = 0;
};

struct Trace {
  std::vector<std::string> threads = {"compute", "communication"};  // Names, by number.
  std::vector<TraceEvent> events;
  std::vector<TraceCounter> counters;
};

// One JSON object: a name for every rank and thread that occurs, by rising rank, then events and
// counters in the order given, a line each.
// REQUIRES: times and values are finite; every event's thread has a name.
void write_chrome_trace(std::ostream& out, const Trace& trace);

// The same as text.
std::string chrome_trace(const Trace& trace);

}  // namespace penstock::render
