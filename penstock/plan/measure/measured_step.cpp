#include "penstock/plan/measure/measured_step.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <string_view>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/verify/hops.h"

namespace penstock::measure {
namespace {

using mesh::Role;
using schedule::Action;
using schedule::Op;
using Events = std::span<const Event>;

constexpr double kNanosecondsPerMillisecond = 1e6;
constexpr std::string_view kOneRun = "timeline.csv and schedule.csv have to be of one run";

double to_ms(std::int64_t ns) { return static_cast<double>(ns) / kNanosecondsPerMillisecond; }

bool is_computation(const Event& event) {
  return event.what == What::Action && schedule::is_compute(event.action.op);
}

bool same_action(const Action& a, const Action& b) {
  return a.stage == b.stage && a.op == b.op && a.microbatch == b.microbatch;
}

std::int32_t replica_of(const Place& place, const mesh::Shape& shape) {
  return place.at.number(shape, mesh::axes_of(Role::OtherSamples));
}

// The global rank at each place of the replica's pipe; the first of those that share its layers.
std::vector<Rank> pipe_of(const Recording& recording, std::int32_t replica) {
  const mesh::Shape shape = shape_of(recording);
  const std::vector<mesh::Axis> of_pipe = mesh::axes_of(Role::Pipe);
  const std::vector<mesh::Axis> of_layer = mesh::axes_of(Role::SameLayers);
  std::vector<Rank> ranks(static_cast<std::size_t>(shape.size(Role::Pipe)));
  for (std::size_t rank = 0; rank < recording.ranks.size(); ++rank) {
    const Place& place = recording.ranks[rank];
    if (replica_of(place, shape) != replica || place.at.number(shape, of_layer) != 0) continue;
    ranks[static_cast<std::size_t>(place.at.number(shape, of_pipe))] = Rank(rank);
  }
  return ranks;
}

// What trains has backwards, and where there are several ranks, messages.
void check_trains(const schedule::Schedule& schedule) {
  if (schedule.purpose == schedule::Purpose::Forward) {
    throw ScheduleError("the schedule has no backward: no run has trained by it",
                        {std::string(kOneRun)});
  }
  if (schedule.ranks() > 1 && !schedule::is_lowered(schedule)) {
    throw ScheduleError(str("the schedule has ", schedule.ranks(),
                            " ranks and no messages: no run has trained by it"),
                        {std::string(kOneRun)});
  }
}

void check_ranks(std::size_t pipe, const schedule::Schedule& schedule) {
  if (pipe == schedule.programs.size()) return;
  throw ScheduleError(str("the timeline is not of this schedule: it has ", pipe,
                          " pipeline ranks, the schedule has ", schedule.ranks()),
                      {std::string(kOneRun)});
}

// Every action of the program, in its order.
void check_program(Events events, const schedule::Program& program, Rank rank, std::int64_t step) {
  std::size_t next = 0;
  const auto refuse = [&](const std::string& found, const std::string& expected) {
    throw ScheduleError(str("the timeline is not of this schedule: rank ", rank, " ran ", found,
                            " as action ", next, " of step ", step, ", its program has ", expected),
                        {std::string(kOneRun)});
  };
  for (const Event& event : events) {
    if (event.what != What::Action) continue;
    if (next == program.size()) refuse(name_of(event), "no more");
    if (!same_action(event.action, program[next])) {
      refuse(name_of(event), schedule::to_string(program[next]));
    }
    ++next;
  }
  if (next != program.size()) refuse("nothing", schedule::to_string(program[next]));
}

// What the rank does behind the computation at `at` until the next one, without what it waits.
std::int64_t time_behind(Events events, std::size_t at) {
  std::int64_t time = 0;
  for (std::size_t i = at + 1; i < events.size(); ++i) {
    const Event& event = events[i];
    time += event.start_ns - events[i - 1].end_ns;
    const bool ends = is_computation(event) || event.what == What::Finish ||
                      event.action.op == Op::ReduceGradients;
    if (ends) break;
    if (event.what == What::Action) time += event.end_ns - event.start_ns;
  }
  return time;
}

std::optional<Reduction> reduction_of(Events events, std::int64_t origin) {
  for (std::size_t i = events.size(); i > 0; --i) {
    const Event& event = events[i - 1];
    if (event.what != What::Action || event.action.op != Op::ReduceGradients) continue;
    return Reduction{.action = event.action,
                     .start = to_ms(event.start_ns - origin),
                     .end = to_ms(events.back().end_ns - origin)};
  }
  return {};
}

// The messages of a step, and how long those took that were waited for when they set out.
class Messages {
 public:
  Messages(const Recording& recording, const verify::VerifiedSchedule& schedule)
      : recording_(recording),
        hops_(schedule.schedule(), schedule.facts().homes),
        sends_(hops_.messages(), nullptr),
        time_(hops_.messages()) {}

  void note_sends(Events events) {
    for (const Event& event : events) {
      if (event.what != What::Action || !schedule::is_send(event.action.op)) continue;
      sends_[hops_.message_of(event.action)] = &event;
      order_.push_back(hops_.message_of(event.action));
    }
  }

  // REQUIRES: all sends are noted.
  void note_waits(Events events) {
    for (const Event& event : events) {
      if (!is_computation(event)) continue;
      const verify::MessageId message = hops_.input_of(event.action);
      if (message == verify::kNoMessage) continue;
      const Event* send = sends_[message];
      PENSTOCK_CHECK(send != nullptr, event.action, " has no SEND");
      const bool waited = event.start_ns <= send->end_ns && send->end_ns <= event.ready_ns;
      if (waited && clock_of(*send) == clock_of(event)) {
        time_[message] = to_ms(event.ready_ns - send->end_ns);
      }
    }
  }

  std::vector<Message> take() const {
    std::vector<Message> messages;
    for (const verify::MessageId id : order_) {
      messages.push_back({sends_[id]->action, sends_[id]->bytes, time_[id]});
    }
    return messages;
  }

 private:
  std::uint64_t clock_of(const Event& event) const {
    return recording_.ranks[event.rank.index()].clock;
  }

  const Recording& recording_;
  verify::Hops hops_;
  std::vector<const Event*> sends_;          // SENDs by message.
  std::vector<std::optional<double>> time_;  // Times by message.
  std::vector<verify::MessageId> order_;
};

std::vector<ExchangeTimes> times_of(std::span<const Exchange> exchanges, std::int64_t origin_ns) {
  std::vector<ExchangeTimes> times;
  for (const Exchange& exchange : exchanges) {
    times.push_back({.name = exchange.name,
                     .start = to_ms(exchange.start_ns - origin_ns),
                     .begun = to_ms(exchange.begun_ns - origin_ns),
                     .awaited = to_ms(exchange.awaited_ns - origin_ns),
                     .end = to_ms(exchange.end_ns - origin_ns),
                     .action = exchange.action});
  }
  return times;
}

// The first event of the step, by pipe rank: of all those with its clock.
std::vector<std::int64_t> origins_of(const Recording& recording, const std::vector<Rank>& pipe,
                                     const std::vector<Events>& events) {
  std::vector<std::int64_t> origins(pipe.size(), std::numeric_limits<std::int64_t>::max());
  for (std::size_t i = 0; i < pipe.size(); ++i) {
    for (std::size_t k = 0; k < pipe.size(); ++k) {
      if (recording.ranks[pipe[i].index()].clock != recording.ranks[pipe[k].index()].clock)
        continue;
      origins[i] = std::min(origins[i], events[k].front().start_ns);
    }
  }
  return origins;
}

}  // namespace

std::vector<Computation> computations_of(Events events, std::int64_t origin_ns) {
  std::vector<Computation> computations;
  for (std::size_t i = 0; i < events.size(); ++i) {
    const Event& event = events[i];
    if (!is_computation(event)) continue;
    const std::int64_t own = event.end_ns - event.ready_ns;
    computations.push_back({.action = event.action,
                            .wait = to_ms(event.ready_ns - event.start_ns),
                            .start = to_ms(event.ready_ns - origin_ns),
                            .own = to_ms(own),
                            .hold = to_ms(own + time_behind(events, i))});
  }
  return computations;
}

std::int32_t replicas(const Recording& recording) {
  return shape_of(recording).size(Role::OtherSamples);
}

bool is_one_clock(const Recording& recording, std::int32_t replica) {
  const mesh::Shape shape = shape_of(recording);
  std::optional<std::uint64_t> clock;
  return std::ranges::all_of(recording.ranks, [&](const Place& place) {
    if (replica_of(place, shape) != replica) return true;
    if (!clock) clock = place.clock;
    return *clock == place.clock;
  });
}

MeasuredStep measured_step(const Recording& recording, const verify::VerifiedSchedule& schedule,
                           std::int64_t step, std::int32_t replica) {
  const std::vector<Rank> pipe = pipe_of(recording, replica);
  check_trains(schedule.schedule());
  check_ranks(pipe.size(), schedule.schedule());
  std::vector<Events> events;
  for (const Rank rank : pipe) events.push_back(events_of(recording, rank, step));
  const std::vector<std::int64_t> origins = origins_of(recording, pipe, events);
  MeasuredStep measured{.step = step};
  Messages messages(recording, schedule);
  for (std::size_t i = 0; i < pipe.size(); ++i) {
    check_program(events[i], schedule.schedule().programs[i], pipe[i], step);
    messages.note_sends(events[i]);
    measured.computations.push_back(computations_of(events[i], origins[i]));
    measured.exchanges.push_back(times_of(exchanges_of(recording, pipe[i], step), origins[i]));
    measured.reductions.push_back(replicas(recording) > 1 ? reduction_of(events[i], origins[i])
                                                          : std::nullopt);
    measured.makespan = std::max(measured.makespan, to_ms(events[i].back().end_ns - origins[i]));
  }
  if (measured.makespan <= 0.0) {
    throw ScheduleError(str("the timeline has no times: step ", step, " begins and ends at once"));
  }
  for (const Events& each : events) messages.note_waits(each);
  measured.messages = messages.take();
  return measured;
}

}  // namespace penstock::measure
