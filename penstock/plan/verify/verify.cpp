#include "penstock/verify/verify.h"

#include <algorithm>
#include <utility>

#include "penstock/core/counted.h"
#include "penstock/core/text.h"
#include "penstock/plan/verify/entries.h"
#include "penstock/plan/verify/live_activations.h"
#include "penstock/plan/verify/misorder.h"
#include "penstock/plan/verify/order.h"
#include "penstock/plan/verify/replay.h"
#include "penstock/plan/verify/shards.h"
#include "penstock/plan/verify/stray_numbers.h"

namespace penstock::verify {
namespace {

using schedule::Action;
using schedule::Program;
using schedule::Schedule;

void check_options(const Options& options, const Schedule& schedule) {
  auto texts = misfits("activation", options.activation, schedule.stages, schedule.microbatches);
  if (!(options.keep >= 0.0 && options.keep <= 1.0)) {
    texts.push_back(str("keep: ", options.keep, "; expected a share from 0 to 1"));
  }
  if (!texts.empty()) throw ConfigError(join(texts, "\n"));
}

// A replay that only asks whether things can happen.
struct NoClock {
  void compute(std::size_t, std::span<const Action>) {}
  void beside(std::size_t, const Action&) {}
  void post(std::size_t, MessageId) {}
  bool set_out(MessageId) { return true; }
  MessageId next_arrival() { return kNoMessage; }
  void go_on(std::size_t, MessageId) {}
};

class Verifier {
 public:
  Verifier(const Schedule& schedule, const Options& options)
      : schedule_(schedule), options_(options), objections_(schedule) {}

  Verdict run() {
    check_actions();
    if (objections_.empty()) check_together();
    if (objections_.empty()) {
      for (std::size_t rank = 0; rank < schedule_.programs.size(); ++rank) check_memory(rank);
    }
    return {.diagnostics = std::move(objections_).in_order(), .facts = std::move(facts_)};
  }

 private:
  void check_actions() {
    Objections to_entries(schedule_);
    const auto entries = enter(schedule_, to_entries);
    if (!to_entries.empty()) add_all(told_of(std::move(to_entries).in_order()));
    if (!entries || has_strays_) return;
    check_order(schedule_, *entries, objections_);
    for (std::size_t rank = 0; rank < schedule_.programs.size(); ++rank) {
      for (ShardFault& fault : shard_faults(schedule_.programs[rank])) {
        objections_.add(fault.code, {Rank(rank), fault.step}, std::move(fault.message),
                        fault.repair);
      }
    }
    if (!objections_.empty()) return;
    facts_.homes = schedule::Homes(schedule_);
  }

  // A number that was mistyped is one objection, and not all that seems to be missing because of
  // it.
  std::vector<Diagnostic> told_of(std::vector<Diagnostic> found) {
    std::vector<Diagnostic> strays = objections_to_stray_numbers(schedule_);
    has_strays_ = !strays.empty();
    return has_strays_ ? strays : found;
  }

  void add_all(std::vector<Diagnostic> diagnostics) {
    for (Diagnostic& each : diagnostics) objections_.add(std::move(each));
  }

  // The programs against each other.
  void check_together() {
    if (options_.channels == Channels::DirFifo) {
      for (Diagnostic& diagnostic : misorders(schedule_, {schedule_, facts_.homes})) {
        objections_.add(std::move(diagnostic));
      }
      if (!objections_.empty()) return;
    }
    Replay<NoClock> replay(schedule_, facts_.homes, options_);
    NoClock clock;
    replay.run(clock);
    if (!replay.standing().is_over()) objections_.add(deadlock(replay.standing()));
  }

  void check_memory(std::size_t rank) {
    LiveActivations live(schedule_.purpose, options_.activation, options_.keep);
    Place most_count{.rank = Rank(rank)};
    Place most_memory{.rank = Rank(rank)};
    const Program& program = schedule_.programs[rank];
    for (std::size_t step = 0; step < program.size(); ++step) {
      const std::int32_t count = live.peak_count();
      const double memory = live.peak_memory();
      live.start(program[step]);
      if (live.peak_count() > count) most_count.step = static_cast<std::int32_t>(step);
      if (live.peak_memory() > memory) most_memory.step = static_cast<std::int32_t>(step);
      live.end(program[step]);
    }
    facts_.peak_activations.push_back(live.peak_count());
    if (options_.activations_max && live.peak_count() > *options_.activations_max) {
      objections_.add(Code::TooManyActivations, most_count,
                      str("holds ", counted(live.peak_count(), "activation"), ", ",
                          *options_.activations_max, " allowed"),
                      "run backwards earlier, or allow more");
    }
    if (options_.memory_max && live.peak_memory() > *options_.memory_max) {
      objections_.add(Code::TooMuchMemory, most_memory,
                      str("holds ", shortest(live.peak_memory()), " of activations, ",
                          shortest(*options_.memory_max), " allowed"),
                      "run backwards earlier, or allow more");
    }
  }

  const Schedule& schedule_;
  const Options& options_;
  Objections objections_;
  bool has_strays_ = false;
  Facts facts_;
};

std::string refusal_text(const Schedule& schedule, const std::vector<Diagnostic>& diagnostics) {
  constexpr std::size_t kShown = 20;
  std::string text =
      str("schedule ", schedule::title(schedule), ": ", counted(diagnostics, "objection"));
  for (std::size_t i = 0; i < std::min(kShown, diagnostics.size()); ++i) {
    text += "\n" + to_string(diagnostics[i]);
  }
  if (diagnostics.size() > kShown) {
    text += str("\n... and ", diagnostics.size() - kShown, " more");
  }
  return text;
}

}  // namespace

Verdict verify(const Schedule& schedule, const Options& options) {
  if (schedule.stages > 0 && schedule.microbatches > 0) check_options(options, schedule);
  return Verifier(schedule, options).run();
}

Refusal::Refusal(const Schedule& schedule, std::vector<Diagnostic> diagnostics)
    : ScheduleError(refusal_text(schedule, diagnostics)), diagnostics_(std::move(diagnostics)) {}

VerifiedSchedule VerifiedSchedule::from(Schedule schedule, const Options& options) {
  Verdict verdict = verify(schedule, options);
  if (!verdict.diagnostics.empty()) throw Refusal(schedule, std::move(verdict.diagnostics));
  return {std::move(schedule), options, std::move(verdict.facts)};
}

VerifiedSchedule::VerifiedSchedule(Schedule schedule, Options options, Facts facts)
    : schedule_(std::move(schedule)), options_(std::move(options)), facts_(std::move(facts)) {}

}  // namespace penstock::verify
