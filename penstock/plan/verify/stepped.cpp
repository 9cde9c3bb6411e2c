#include "penstock/plan/verify/stepped.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/schedule/deepspeed/conversion.h"
#include "penstock/plan/schedule/deepspeed/trace.h"
#include "penstock/plan/verify/rendezvous.h"

namespace penstock::verify {
namespace {

using schedule::deepspeed::Fault;
using schedule::deepspeed::InstructionPlace;
using schedule::deepspeed::Kind;
using schedule::deepspeed::StageSteps;
using schedule::deepspeed::SteppedSchedule;

Code code_of(Fault fault) {
  switch (fault) {
    case Fault::WrongStage:
      return Code::WrongStage;
    case Fault::NoSuchBuffer:
      return Code::NoSuchBuffer;
    case Fault::NothingThere:
      return Code::NothingThere;
    case Fault::Overwrites:
      return Code::Overwrites;
    case Fault::OtherMicrobatch:
      return Code::OtherMicrobatch;
    case Fault::Unused:
      return Code::Unused;
    case Fault::Unpaired:
      return Code::ScatteredEnds;
  }
  return Code::WrongStage;
}

class SteppedVerifier {
 public:
  SteppedVerifier(const SteppedSchedule& schedule, const SteppedOptions& options)
      : schedule_(schedule), tied_(tied_stages(schedule, options)) {
    knows_tied_ = options.tied_stages.has_value();
  }

  Verdict run() {
    if (schedule_.stages.empty()) {
      object(Code::Missing, "the schedule is empty");
      return std::move(verdict_);
    }
    check_lengths();
    const auto traced = trace(schedule_);
    const bool placed = std::ranges::none_of(
        traced.faults, [](const auto& fault) { return fault.fault == Fault::WrongStage; });
    const bool met = placed && check_rendezvous();
    for (const auto& fault : traced.faults) {
      // check_rendezvous() says this better; and once a message is lost, what follows is shifted.
      if (fault.fault == Fault::Unpaired) continue;
      if (fault.fault == Fault::OtherMicrobatch && !met) continue;
      object(code_of(fault.fault), fault.place, fault.message, fault.repair);
    }
    check_endings();
    if (verdict_.diagnostics.empty()) return verify(to_schedule(schedule_));
    const auto order = [](const Diagnostic& d) { return std::tuple(d.rank, d.step); };
    std::ranges::stable_sort(verdict_.diagnostics, {}, order);
    return std::move(verdict_);
  }

 private:
  static std::vector<StageId> tied_stages(const SteppedSchedule& schedule,
                                          const SteppedOptions& options) {
    std::vector<StageId> tied;
    if (options.tied_stages) {
      tied = *options.tied_stages;
      std::ranges::sort(tied);
      tied.erase(std::unique(tied.begin(), tied.end()), tied.end());
      for (const StageId stage : tied) {
        if (stage.value >= 0 && stage.index() < schedule.stages.size()) continue;
        throw ScheduleError(str("tied_stages: ", stage, " is no stage of the schedule, which has ",
                                schedule.stages.size()));
      }
      return tied;
    }
    for (std::size_t s = 0; s < schedule.stages.size(); ++s) tied.emplace_back(s);
    return tied;
  }

  void object(Code code, std::string message, std::vector<std::string> notes = {}) {
    verdict_.diagnostics.push_back({.code = code,
                                    .rank = {},
                                    .step = {},
                                    .message = std::move(message),
                                    .notes = std::move(notes)});
  }

  void object(Code code, const InstructionPlace& place, std::string message, std::string repair) {
    verdict_.diagnostics.push_back({.code = code,
                                    .rank = Rank(place.stage.value),
                                    .step = place.step,
                                    .message = std::move(message),
                                    .notes = {window(schedule_, place), std::move(repair)}});
  }

  void check_lengths() {
    const std::size_t first = schedule_.stages.front().steps.size();
    for (std::size_t s = 1; s < schedule_.stages.size(); ++s) {
      const std::size_t steps = schedule_.stages[s].steps.size();
      if (steps == first) continue;
      object(Code::UnequalSteps, str("stage ", s, " has ", steps, " steps, stage 0 has ", first),
             {"a barrier may stand between any two steps; end the shorter one with empty steps"});
    }
  }

  // Whether every message has both ends in one step.
  bool check_rendezvous() {
    auto objections = scattered_ends(schedule_, tied_);
    const bool met = objections.empty();
    if (met) objections = circles(schedule_, tied_);
    std::ranges::move(objections, std::back_inserter(verdict_.diagnostics));
    return met;
  }

  // The places of one stage's reductions and optimizer steps.
  struct Ending {
    std::optional<InstructionPlace> last_backward;
    std::vector<InstructionPlace> tied;
    std::vector<InstructionPlace> reduces;
    std::vector<InstructionPlace> optimizers;
  };

  Ending ending_of(std::size_t s) const {
    Ending ending;
    const auto& steps = schedule_.stages[s].steps;
    for (std::size_t t = 0; t < steps.size(); ++t) {
      for (std::size_t i = 0; i < steps[t].size(); ++i) {
        const InstructionPlace place{StageId(s), static_cast<std::int32_t>(t),
                                     static_cast<std::int32_t>(i)};
        const Kind kind = steps[t][i].kind;
        if (kind == Kind::BackwardPass) ending.last_backward = place;
        if (kind == Kind::ReduceTiedGrads) ending.tied.push_back(place);
        if (kind == Kind::ReduceGrads) ending.reduces.push_back(place);
        if (kind == Kind::OptimizerStep) ending.optimizers.push_back(place);
      }
    }
    return ending;
  }

  static bool before(const InstructionPlace& a, const InstructionPlace& b) {
    return std::tuple(a.step, a.index) < std::tuple(b.step, b.index);
  }

  void check_endings() {
    std::vector<std::size_t> without;
    for (std::size_t s = 0; s < schedule_.stages.size(); ++s) {
      const Ending ending = ending_of(s);
      check_ending(s, ending);
      if (ending.optimizers.empty()) without.push_back(s);
    }
    if (without.size() == schedule_.stages.size()) return;
    for (const std::size_t s : without) {
      object(Code::OptimizerOutOfPlace,
             str("stage ", s, " has no OptimizerStep(), other stages have one"),
             {str("add OptimizerStep() behind the reductions of stage ", s)});
    }
  }

  void check_ending(std::size_t s, const Ending& ending) {
    const bool holds_tied =
        knows_tied_ && tied_.size() > 1 && std::ranges::binary_search(tied_, StageId(s));
    check_reduction(Kind::ReduceTiedGrads, ending.tied, ending, holds_tied);
    check_reduction(Kind::ReduceGrads, ending.reduces, ending, true);
    check_once(Kind::OptimizerStep, ending.optimizers);
  }

  void check_once(Kind kind, const std::vector<InstructionPlace>& places) {
    for (std::size_t i = 1; i < places.size(); ++i) {
      object(Code::OptimizerOutOfPlace, places[i], str(to_string(kind), "() comes again"),
             str("it is in step ", places.front().step, " already; remove one of the two"));
    }
  }

  // Checks that a reduction is there once, between the last BackwardPass and OptimizerStep.
  void check_reduction(Kind kind, const std::vector<InstructionPlace>& places, const Ending& ending,
                       bool needed) {
    check_once(kind, places);
    const std::string name = str(to_string(kind), "()");
    if (!places.empty() && ending.last_backward && before(places.front(), *ending.last_backward)) {
      object(Code::OptimizerOutOfPlace, places.front(),
             name + " comes before the stage's last BackwardPass",
             str("that is in step ", ending.last_backward->step, "; move ", name, " behind it"));
    }
    if (ending.optimizers.empty()) return;
    const InstructionPlace& optimizer = ending.optimizers.front();
    if (places.empty() ? !needed : before(places.front(), optimizer)) return;
    object(Code::OptimizerOutOfPlace, optimizer, str("OptimizerStep() has no ", name, " before it"),
           places.empty() ? "add it" : str("move it ahead from step ", places.front().step));
  }

  const SteppedSchedule& schedule_;
  std::vector<StageId> tied_;  // Stages in rising order.
  bool knows_tied_ = false;
  Verdict verdict_;
};

}  // namespace

Verdict verify_stepped(const SteppedSchedule& schedule, const SteppedOptions& options) {
  return SteppedVerifier(schedule, options).run();
}

}  // namespace penstock::verify
