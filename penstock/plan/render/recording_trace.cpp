#include "penstock/plan/render/recording_trace.h"

#include "penstock/core/text.h"

namespace penstock::render {
namespace {

using measure::What;

constexpr double kNanosecondsPerMicrosecond = 1e3;

template <class Timed>
TraceEvent event_of(const Timed& event, int thread, std::string name, std::int64_t start_ns,
                    std::int64_t end_ns) {
  return {.name = std::move(name),
          .category = thread == kComputeThread ? "compute" : "communication",
          .process = event.rank.value,
          .thread = thread,
          .start_us = static_cast<double>(start_ns) / kNanosecondsPerMicrosecond,
          .duration_us = static_cast<double>(end_ns - start_ns) / kNanosecondsPerMicrosecond,
          .args = {{"step", str(event.step)}}};
}

}  // namespace

Trace trace_of(const measure::Recording& recording) {
  Trace trace;
  for (const measure::Event& event : recording.events) {
    const bool computes = event.what == What::Action && schedule::is_compute(event.action.op);
    const std::string name = name_of(event);
    if (!computes) {
      trace.events.push_back(
          event_of(event, kCommunicationThread, name, event.start_ns, event.end_ns));
      continue;
    }
    if (event.ready_ns > event.start_ns) {
      trace.events.push_back(event_of(event, kCommunicationThread, "wait for " + name,
                                      event.start_ns, event.ready_ns));
    }
    trace.events.push_back(event_of(event, kComputeThread, name, event.ready_ns, event.end_ns));
  }
  // An exchange holds its rank while it is begun and awaited.
  for (const measure::Exchange& exchange : recording.exchanges) {
    trace.events.push_back(event_of(exchange, kCommunicationThread, exchange.name,
                                    exchange.start_ns, exchange.begun_ns));
    trace.events.push_back(event_of(exchange, kCommunicationThread, "await " + exchange.name,
                                    exchange.awaited_ns, exchange.end_ns));
  }
  return trace;
}

}  // namespace penstock::render
