// One rank's part of the costs of a window, from the events of its steps.
//
// run/ has one on every rank and adds each step that is recorded.  Keeps durations, and of the
// newest step the times of its messages; no events.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "penstock/plan/adapt/window_costs.h"
#include "penstock/plan/measure/recording.h"
#include "penstock/verify/verify.h"

namespace penstock::adapt {

class Window {
 public:
  // Records for a rank of the pipe that runs `program`, which outlives this.  `clock` is the id of
  // the clock (measure::Place).
  Window(const verify::VerifiedSchedule& program, Rank pipe, std::uint64_t clock);

  // REQUIRES: the events are those of this rank in one step of the program.
  void add(std::int64_t step, std::span<const measure::Event> events);

  std::int64_t steps() const { return static_cast<std::int64_t>(rank_.size()); }

  // The part of this rank: the others' stages and times are absent, and so is the latency.
  // REQUIRES: steps() > 0.
  WindowCosts costs() const;

  // The times at which messages set out in the newest step, and at which their receivers began and
  // ended to wait for them.  Each has a place of its own, as to_numbers() has it.  Only the first
  // kMicrobatches of each hop.
  static constexpr std::size_t kMicrobatches = 32;
  std::vector<double> message_times() const { return messages_; }
  // The latency that the sum of all ranks' message_times() says.  Of messages that their receivers
  // were waiting for, between ranks with one clock, the median.
  std::optional<double> latency_of(const std::vector<double>& all_message_times) const;

  // The next window begins.
  void clear();

 private:
  struct Samples {
    std::vector<double> forward, backward, input, weight;
  };
  std::vector<double>* samples_of(const schedule::Action& action);
  void note_messages(std::span<const measure::Event> events);

  const verify::VerifiedSchedule& program_;
  Rank pipe_;
  double clock_;
  std::int64_t first_step_ = 0;
  std::int64_t last_step_ = 0;
  std::vector<Samples> stages_;
  std::vector<double> rank_;  // Time of each step.
  std::vector<double> messages_;
};

}  // namespace penstock::adapt
