#include "penstock/train/timeline.h"

#include <algorithm>
#include <limits>

#include "penstock/core/text.h"
#include "penstock/render/chrome_trace.h"

namespace penstock::train {
namespace {

using lower::Kind;

constexpr int kCompute = 0;
constexpr int kCommunication = 1;

std::string line(int row, const std::string& name, std::int64_t step, std::int64_t start_ns,
                 std::int64_t end_ns) {
  return str(row, '\t', name, '\t', step, '\t', start_ns, '\t', end_ns, '\n');
}

void read_lines(const std::string& text, int rank, std::vector<render::TraceEvent>& events) {
  for (const std::string& row : split(text, '\n')) {
    const auto fields = split(row, '\t');
    if (fields.size() != 5) continue;
    const auto start = static_cast<double>(parse_integer(fields[3]).value_or(0));
    const auto end = static_cast<double>(parse_integer(fields[4]).value_or(0));
    const int thread = fields[0] == "0" ? kCompute : kCommunication;
    events.push_back({.name = fields[1],
                      .category = thread == kCompute ? "compute" : "communication",
                      .process = rank,
                      .thread = thread,
                      .start_us = start / 1e3,
                      .duration_us = (end - start) / 1e3,
                      .args = {{"step", fields[2]}}});
  }
}

}  // namespace

void Timeline::add(std::int64_t step, const execute::Executor& executor) {
  for (const execute::Event& event : executor.events()) {
    const lower::Instruction& instruction =
        executor.plan().instructions[static_cast<std::size_t>(event.instruction)];
    const std::string name = schedule::to_string(instruction.action);
    switch (instruction.kind) {
      case Kind::Forward:
      case Kind::Backward:
      case Kind::BackwardInput:
        if (instruction.from == lower::Route::Message) {
          lines_ += line(kCommunication, "wait for " + name, step, event.start_ns, event.ready_ns);
        }
        lines_ += line(kCompute, name, step, event.ready_ns, event.end_ns);
        break;
      case Kind::BackwardWeight:
        lines_ += line(kCompute, name, step, event.start_ns, event.end_ns);
        break;
      case Kind::AwaitSend:
        lines_ += line(kCommunication, "await " + name, step, event.start_ns, event.end_ns);
        break;
      case Kind::Send:
      case Kind::Receive:
      case Kind::ReduceGradients:
      case Kind::Unshard:
      case Kind::Reshard:
        lines_ += line(kCommunication, name, step, event.start_ns, event.end_ns);
        break;
    }
  }
}

std::string Timeline::gather(comm::Communicator& communicator) const {
  const auto key = [](std::int32_t rank) { return str("timeline/", rank); };
  communicator.put(key(communicator.rank().value), lines_);
  if (communicator.rank().value != 0) return {};
  render::Trace trace;
  for (std::int32_t rank = 0; rank < communicator.world_size(); ++rank) {
    read_lines(communicator.get(key(rank)), rank, trace.events);
  }
  double origin = std::numeric_limits<double>::infinity();
  for (const auto& event : trace.events) origin = std::min(origin, event.start_us);
  for (auto& event : trace.events) event.start_us -= origin;
  return render::chrome_trace(trace);
}

}  // namespace penstock::train
