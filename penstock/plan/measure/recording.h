// What the ranks of a run did in its recorded steps, and when: the measured timeline, and its file.
//
// train/ writes it; `penstock report` reads it, fits costs to it and draws it.  Knows no tensors,
// and of schedules only what an action is.
// Units: nanoseconds since the earliest event of all ranks with the same clock; bytes.
// Invariants (of what parse_recording() returns): 1. events are by rank, then by step, then as they
// ran.  2. start <= ready <= end, and a rank's event starts when the one before it is over.
// 3. exchanges are by rank, then by step, then as they ended; start <= begun <= awaited <= end.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/core/mesh/axes.h"
#include "penstock/schedule/action.h"

namespace penstock::measure {

// A recording's files in a folder: itself, and as a trace.
inline constexpr const char* kTimelineFile = "timeline.csv";
inline constexpr const char* kTraceFile = "timeline.json";

enum class What : std::uint8_t {
  Action,     // It ran.
  AwaitSend,  // The rank waited until its SEND was over, whose buffer it needed.
  Finish,     // The end of the step: sends and reductions that were still under way.
};

struct Event {
  std::int64_t step = 0;  // Counts from 1.
  Rank rank;              // Global.
  What what = What::Action;
  schedule::Action action;  // Means nothing for Finish.
  std::int64_t start_ns = 0;
  // Time at which the input came that the rank waited for since `start_ns`.
  std::int64_t ready_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t bytes = 0;  // Size of a SEND's message.
  friend bool operator==(const Event&, const Event&) = default;
};

// An exchange with the ranks that share a stage's layers, within the action that asked for it.  It
// held its rank while it was begun, and again from when its result was needed until that was there;
// between the two the rank computed.
struct Exchange {
  std::int64_t step = 0;
  Rank rank;
  std::string name;  // "the all-gather behind piece 0 of layer "fc"", without an end of line.
  std::int64_t start_ns = 0;
  std::int64_t begun_ns = 0;
  std::int64_t awaited_ns = 0;
  std::int64_t end_ns = 0;
  std::optional<schedule::Action> action = {};  // It asked for this; older files do not say.
  friend bool operator==(const Exchange&, const Exchange&) = default;
};

// A rank's place in the mesh, and its clock: times of two ranks can be compared where these are
// equal, which is so on one host.
struct Place {
  mesh::Coordinate at;
  std::uint64_t clock = 0;
  friend bool operator==(const Place&, const Place&) = default;
};

struct Recording {
  std::string schedule;      // Its name, for people.
  std::vector<Place> ranks;  // Places by global rank.
  std::vector<Event> events;
  std::vector<Exchange> exchanges = {};
  friend bool operator==(const Recording&, const Recording&) = default;
};

inline constexpr std::size_t kRecordingBytesMax = std::size_t{1} << 31;

// The name of an event in the file: "1F3", "await 0SEND_F1", "finish".
std::string name_of(const Event& event);

// Lines of CSV below a head of comments, and a second table if there are exchanges; the last line
// counts what there is, so that a file that was cut short is known by it.  Law:
// parse_recording(to_text(r), ...) == r.
std::string to_text(const Recording& recording);

// Throws: ParseError with `name`, the line, and what was expected there.
Recording parse_recording(std::string_view text, const std::string& name);

// The shape that its ranks fill.
mesh::Shape shape_of(const Recording& recording);

// The steps that every rank recorded, rising.
std::vector<std::int64_t> steps_of(const Recording& recording);

// What `rank` did in `step`; empty when it did not record it.
std::span<const Event> events_of(const Recording& recording, Rank rank, std::int64_t step);

// The exchanges of `rank` in `step`.
std::span<const Exchange> exchanges_of(const Recording& recording, Rank rank, std::int64_t step);

}  // namespace penstock::measure
