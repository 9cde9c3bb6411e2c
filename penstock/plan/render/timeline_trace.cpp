#include "penstock/plan/render/timeline_trace.h"

#include "penstock/core/text.h"

namespace penstock::render {
namespace {

constexpr double kMicrosecondsPerUnit = 1000;

std::string waited_for_text(const Timeline& timeline, const BarPlace& place) {
  const Row& row = timeline.rows[static_cast<std::size_t>(place.row)];
  const Lane& lane = row.lanes[static_cast<std::size_t>(place.lane)];
  const Bar& bar = lane.bars[static_cast<std::size_t>(place.bar)];
  return str(schedule::to_string(bar.action), " of ", row.name);
}

TraceEvent event_of(const Timeline& timeline, const Bar& bar, int process, int thread) {
  TraceEvent event{.name = schedule::to_string(bar.action),
                   .category = timeline.rows[static_cast<std::size_t>(process)]
                                   .lanes[static_cast<std::size_t>(thread)]
                                   .name,
                   .process = process,
                   .thread = thread,
                   .start_us = bar.start * kMicrosecondsPerUnit,
                   .duration_us = (bar.end - bar.start) * kMicrosecondsPerUnit};
  if (bar.waited_for) {
    event.args.emplace_back("waited for", waited_for_text(timeline, *bar.waited_for));
  }
  return event;
}

}  // namespace

Trace trace_of(const Timeline& timeline) {
  Trace trace;
  if (!timeline.rows.empty()) {
    trace.threads.clear();
    for (const Lane& lane : timeline.rows.front().lanes) trace.threads.push_back(lane.name);
  }
  for (std::size_t r = 0; r < timeline.rows.size(); ++r) {
    const Row& row = timeline.rows[r];
    const int process = static_cast<int>(r);
    for (std::size_t l = 0; l < row.lanes.size(); ++l) {
      const int thread = static_cast<int>(l);
      for (const Bar& bar : row.lanes[l].bars) {
        trace.events.push_back(event_of(timeline, bar, process, thread));
      }
    }
    for (const Level& level : row.memory) {
      trace.counters.push_back({.name = "memory",
                                .process = process,
                                .time_us = level.time * kMicrosecondsPerUnit,
                                .value = level.memory});
    }
  }
  return trace;
}

}  // namespace penstock::render
