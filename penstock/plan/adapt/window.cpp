#include "penstock/plan/adapt/window.h"

#include <algorithm>

#include "penstock/core/check.h"
#include "penstock/plan/measure/measured_step.h"
#include "penstock/plan/verify/hops.h"

namespace penstock::adapt {
namespace {

using measure::Event;
using measure::What;
using schedule::Op;

constexpr double kNanosecondsPerMillisecond = 1e6;

double to_ms(std::int64_t ns) { return static_cast<double>(ns) / kNanosecondsPerMillisecond; }

// Ids are compared as numbers that a double has exactly, and none is 0.
double number_of(std::uint64_t clock) { return 1.0 + static_cast<double>(clock >> 16U); }

std::optional<Quartiles> quartiles_of(const std::vector<double>& samples) {
  if (samples.empty()) return {};
  return measure::quartiles(samples);
}

// The places of a message's three times.
enum : std::size_t { kSent, kAsked, kCame, kTimes };

// The index of each message's times in a vector; the clocks of ranks come first.
class Places {
 public:
  explicit Places(const verify::VerifiedSchedule& program)
      : hops_(program.schedule(), program.facts().homes),
        ranks_(program.schedule().programs.size()),
        microbatches_(static_cast<std::size_t>(program.schedule().microbatches)),
        kept_(std::min(microbatches_, Window::kMicrobatches)) {}

  const verify::Hops& hops() const { return hops_; }
  std::size_t size() const { return ranks_ + kTimes * kept_ * hops_.count(); }
  std::optional<std::size_t> of(verify::MessageId message) const {
    const std::size_t microbatch = message % microbatches_;
    if (message == verify::kNoMessage || microbatch >= kept_) return {};
    return ranks_ + kTimes * (hops_.hop_of(message) * kept_ + microbatch);
  }
  std::size_t hop_at(std::size_t place) const { return (place - ranks_) / kTimes / kept_; }
  std::size_t first() const { return ranks_; }

 private:
  verify::Hops hops_;
  std::size_t ranks_;
  std::size_t microbatches_;
  std::size_t kept_;
};

}  // namespace

Window::Window(const verify::VerifiedSchedule& program, Rank pipe, std::uint64_t clock)
    : program_(program), pipe_(pipe), clock_(number_of(clock)) {
  clear();
}

void Window::clear() {
  stages_.assign(static_cast<std::size_t>(program_.schedule().stages), {});
  rank_.clear();
  messages_.clear();
}

std::vector<double>* Window::samples_of(const schedule::Action& action) {
  Samples& samples = stages_[action.stage.index()];
  if (action.op == Op::Forward) return &samples.forward;
  if (action.op == Op::Backward) return &samples.backward;
  if (action.op == Op::BackwardInput) return &samples.input;
  return action.op == Op::BackwardWeight ? &samples.weight : nullptr;
}

void Window::add(std::int64_t step, std::span<const Event> events) {
  if (events.empty()) return;
  if (rank_.empty()) first_step_ = step;
  last_step_ = step;
  for (const measure::Computation& each : measure::computations_of(events, 0)) {
    samples_of(each.action)->push_back(each.hold);
  }
  rank_.push_back(to_ms(events.back().end_ns - events.front().start_ns));
  note_messages(events);
}

void Window::note_messages(std::span<const Event> events) {
  const Places places(program_);
  messages_.assign(places.size(), 0.0);
  messages_[pipe_.index()] = clock_;
  for (const Event& event : events) {
    if (event.what != What::Action) continue;
    if (schedule::is_send(event.action.op)) {
      if (const auto place = places.of(places.hops().message_of(event.action))) {
        messages_[*place + kSent] = to_ms(event.end_ns);
      }
    } else if (schedule::is_compute(event.action.op)) {
      if (const auto place = places.of(places.hops().input_of(event.action))) {
        messages_[*place + kAsked] = to_ms(event.start_ns);
        messages_[*place + kCame] = to_ms(event.ready_ns);
      }
    }
  }
}

std::optional<double> Window::latency_of(const std::vector<double>& all) const {
  const Places places(program_);
  PENSTOCK_CHECK(all.size() == places.size(), all.size(), " times of messages");
  std::vector<double> times;
  for (std::size_t at = places.first(); at < all.size(); at += kTimes) {
    const verify::Hop& hop = places.hops()[static_cast<verify::HopId>(places.hop_at(at))];
    const double sent = all[at + kSent], came = all[at + kCame];
    if (sent <= 0 || came <= 0 || all[hop.from.index()] != all[hop.to.index()]) continue;
    if (all[at + kAsked] <= sent && sent <= came) times.push_back(came - sent);
  }
  if (times.empty()) return {};
  return measure::quartiles(std::move(times)).median;
}

WindowCosts Window::costs() const {
  PENSTOCK_CHECK(!rank_.empty(), "a window without a step");
  WindowCosts costs{.first_step = first_step_, .last_step = last_step_};
  for (const Samples& samples : stages_) {
    costs.stages.push_back({.forward = quartiles_of(samples.forward),
                            .backward = quartiles_of(samples.backward),
                            .input = quartiles_of(samples.input),
                            .weight = quartiles_of(samples.weight)});
  }
  costs.ranks.resize(program_.schedule().programs.size());
  costs.ranks[pipe_.index()] = measure::quartiles(rank_);
  return costs;
}

}  // namespace penstock::adapt
