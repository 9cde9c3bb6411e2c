#include "penstock/plan/verify/rendezvous.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/text.h"

namespace penstock::verify {
namespace {

using schedule::deepspeed::Instruction;
using schedule::deepspeed::InstructionPlace;
using schedule::deepspeed::Kind;
using schedule::deepspeed::Step;
using schedule::deepspeed::SteppedSchedule;

const Step& step_of(const SteppedSchedule& schedule, const InstructionPlace& place) {
  return schedule.stages[place.stage.index()].steps[static_cast<std::size_t>(place.step)];
}

const Instruction& at(const SteppedSchedule& schedule, const InstructionPlace& place) {
  return step_of(schedule, place)[static_cast<std::size_t>(place.index)];
}

// The other end of a message, by kind and by the stage's distance.
struct OtherEnd {
  Kind kind;
  std::int32_t offset;
};

std::optional<OtherEnd> other_end(Kind kind) {
  switch (kind) {
    case Kind::SendActivation:
      return OtherEnd{Kind::RecvActivation, +1};
    case Kind::RecvActivation:
      return OtherEnd{Kind::SendActivation, -1};
    case Kind::SendGrad:
      return OtherEnd{Kind::RecvGrad, -1};
    case Kind::RecvGrad:
      return OtherEnd{Kind::SendGrad, +1};
    case Kind::LoadMicroBatch:
    case Kind::ForwardPass:
    case Kind::BackwardPass:
    case Kind::ReduceTiedGrads:
    case Kind::ReduceGrads:
    case Kind::OptimizerStep:
      return {};
  }
  return {};
}

std::int32_t steps_of(const SteppedSchedule& schedule, StageId stage) {
  return static_cast<std::int32_t>(schedule.stages[stage.index()].steps.size());
}

// One side of a rendezvous between two stages.
struct Side {
  StageId stage;
  Kind kind;
};

class Scattered {
 public:
  explicit Scattered(const SteppedSchedule& schedule) : schedule_(schedule) {}

  // The k-th of one side meets the k-th of the other.  If one side has more, those without another
  // end in their own step are paired instead: one that is missing would shift all behind it.
  void compare(const Side& one, const Side& other) {
    std::vector<InstructionPlace> of_one = places_of(one);
    std::vector<InstructionPlace> of_other = places_of(other);
    if (of_one.size() != of_other.size()) keep_unmet(of_one, of_other);
    const std::size_t pairs = std::min(of_one.size(), of_other.size());
    for (std::size_t i = 0; i < pairs; ++i) {
      if (of_one[i].step != of_other[i].step) object(of_one[i], of_other[i]);
    }
    for (std::size_t i = pairs; i < of_one.size(); ++i) object(of_one[i], other);
    for (std::size_t i = pairs; i < of_other.size(); ++i) object(of_other[i], one);
  }

  std::vector<Diagnostic> take() { return std::move(diagnostics_); }

 private:
  std::vector<InstructionPlace> places_of(const Side& side) const {
    std::vector<InstructionPlace> places;
    const auto& steps = schedule_.stages[side.stage.index()].steps;
    for (std::size_t t = 0; t < steps.size(); ++t) {
      for (std::size_t i = 0; i < steps[t].size(); ++i) {
        if (steps[t][i].kind != side.kind) continue;
        places.push_back({side.stage, static_cast<std::int32_t>(t), static_cast<std::int32_t>(i)});
      }
    }
    return places;
  }

  // Takes out of both, step by step, as many as both have there.
  static void keep_unmet(std::vector<InstructionPlace>& one, std::vector<InstructionPlace>& other) {
    std::vector<InstructionPlace> left_of_one;
    std::vector<InstructionPlace> left_of_other;
    std::size_t i = 0;
    std::size_t j = 0;
    while (i < one.size() && j < other.size()) {
      if (one[i].step < other[j].step) {
        left_of_one.push_back(one[i++]);
      } else if (other[j].step < one[i].step) {
        left_of_other.push_back(other[j++]);
      } else {
        ++i;
        ++j;
      }
    }
    left_of_one.insert(left_of_one.end(), one.begin() + static_cast<std::ptrdiff_t>(i), one.end());
    left_of_other.insert(left_of_other.end(), other.begin() + static_cast<std::ptrdiff_t>(j),
                         other.end());
    one = std::move(left_of_one);
    other = std::move(left_of_other);
  }

  void object(InstructionPlace first, InstructionPlace second) {
    if (second.step < first.step) std::swap(first, second);
    diagnostics_.push_back(
        {.code = Code::ScatteredEnds,
         .rank = Rank(first.stage.value),
         .step = first.step,
         .message = str(at(schedule_, first), " waits for ", at(schedule_, second), " of stage ",
                        second.stage, ", which is in step ", second.step),
         .notes = {window(schedule_, first), window(schedule_, second),
                   "a barrier may stand between two steps; put both into one"}});
  }

  void object(const InstructionPlace& place, const Side& nobody) {
    diagnostics_.push_back(
        {.code = Code::ScatteredEnds,
         .rank = Rank(place.stage.value),
         .step = place.step,
         .message = str(at(schedule_, place), " waits for a ", to_string(nobody.kind), " of stage ",
                        nobody.stage, " that never comes"),
         .notes = {window(schedule_, place),
                   str("add ", to_string(nobody.kind), " on stage ", nobody.stage, " in step ",
                       place.step, ", or remove it")}});
  }

  const SteppedSchedule& schedule_;
  std::vector<Diagnostic> diagnostics_;
};

// Runs one step after the other on all stages, each until it waits.
class SteppedReplay {
 public:
  SteppedReplay(const SteppedSchedule& schedule, const std::vector<StageId>& tied)
      : schedule_(schedule),
        tied_(tied),
        is_tied_(schedule.stages.size(), false),
        arrived_(schedule.stages.size(), false),
        next_(schedule.stages.size()) {
    for (const StageId stage : tied) is_tied_[stage.index()] = true;
  }

  std::vector<Diagnostic> run() {
    std::int32_t steps = 0;
    for (std::size_t s = 0; s < next_.size(); ++s) {
      steps = std::max(steps, steps_of(schedule_, StageId(s)));
    }
    for (step_ = 0; step_ < steps; ++step_) run_step();
    return std::move(diagnostics_);
  }

 private:
  void run_step() {
    at_tied_ = 0;
    for (std::size_t s = 0; s < next_.size(); ++s) {
      next_[s] = 0;
      arrived_[s] = false;
      if (size(s) > 0) ready_.push_back(s);
    }
    while (!ready_.empty()) {
      const std::size_t s = ready_.back();
      ready_.pop_back();
      advance(s);
    }
    for (std::size_t s = 0; s < next_.size(); ++s) {
      if (next_[s] == size(s)) continue;
      object(s);
      return;
    }
  }

  std::size_t size(std::size_t s) const {
    const auto& steps = schedule_.stages[s].steps;
    const auto step = static_cast<std::size_t>(step_);
    return step < steps.size() ? steps[step].size() : 0;
  }

  InstructionPlace place(std::size_t s) const {
    return {StageId(s), step_, static_cast<std::int32_t>(next_[s])};
  }

  Kind head(std::size_t s) const { return at(schedule_, place(s)).kind; }
  bool stands_at(std::size_t s, Kind kind) const { return next_[s] < size(s) && head(s) == kind; }
  bool waits_for_tied(std::size_t s) const {
    return is_tied_[s] && stands_at(s, Kind::ReduceTiedGrads);
  }

  void advance(std::size_t s) {
    for (; next_[s] < size(s); ++next_[s]) {
      if (waits_for_tied(s)) return arrive_at_tied(s);
      const auto other = other_end(head(s));
      if (!other) continue;
      const std::size_t peer = peer_of(s, *other);
      if (!stands_at(peer, other->kind)) return;
      ++next_[peer];
      ready_.push_back(peer);
    }
  }

  std::size_t peer_of(std::size_t s, const OtherEnd& other) const {
    const auto peer = static_cast<std::int32_t>(s) + other.offset;
    PENSTOCK_CHECK(peer >= 0 && peer < static_cast<std::int32_t>(next_.size()), "stage ", s);
    return static_cast<std::size_t>(peer);
  }

  void arrive_at_tied(std::size_t s) {
    if (!arrived_[s]) ++at_tied_;
    arrived_[s] = true;
    if (at_tied_ < tied_.size()) return;
    at_tied_ = 0;
    for (const StageId stage : tied_) {
      arrived_[stage.index()] = false;
      ++next_[stage.index()];
      ready_.push_back(stage.index());
    }
  }

  // The stage that a stuck one waits for.
  std::size_t awaited(std::size_t s) const {
    if (const auto other = other_end(head(s))) return peer_of(s, *other);
    const auto late =
        std::ranges::find_if(tied_, [&](StageId stage) { return !waits_for_tied(stage.index()); });
    PENSTOCK_CHECK(late != tied_.end(), "stage ", s);
    return late->index();
  }

  std::string_view awaited_name(std::size_t s) const {
    const auto other = other_end(head(s));
    return to_string(other ? other->kind : Kind::ReduceTiedGrads);
  }

  // Every stage that is stuck waits for another one that is, so following the waits ends in a
  // circle.
  void object(std::size_t s) {
    std::vector<bool> seen(next_.size(), false);
    for (; !seen[s]; s = awaited(s)) seen[s] = true;
    const std::size_t other = awaited(s);
    Diagnostic diagnostic{
        .code = Code::Circle,
        .rank = Rank(s),
        .step = step_,
        .message = str(at(schedule_, place(s)), " waits for stage ", other, ", which waits at ",
                       at(schedule_, place(other)), ": deadlock"),
        .notes = {}};
    std::size_t each = s;
    do {
      diagnostic.notes.push_back(str(window(schedule_, place(each)), "; waits for ",
                                     awaited_name(each), " of stage ", awaited(each)));
      each = awaited(each);
    } while (each != s);
    diagnostic.notes.emplace_back("sends block: let one of them receive before it sends");
    diagnostics_.push_back(std::move(diagnostic));
  }

  const SteppedSchedule& schedule_;
  const std::vector<StageId>& tied_;
  std::vector<bool> is_tied_;      // Stages with tied parameters.
  std::vector<bool> arrived_;      // Stages that wait at ReduceTiedGrads.
  std::vector<std::size_t> next_;  // First instruction of the step not yet run, by stage.
  std::vector<std::size_t> ready_;
  std::size_t at_tied_ = 0;  // How many have arrived.
  std::int32_t step_ = 0;
  std::vector<Diagnostic> diagnostics_;
};

}  // namespace

std::vector<Diagnostic> scattered_ends(const SteppedSchedule& schedule,
                                       const std::vector<StageId>& tied) {
  Scattered scattered(schedule);
  for (std::size_t s = 0; s + 1 < schedule.stages.size(); ++s) {
    scattered.compare({StageId(s), Kind::SendActivation}, {StageId(s + 1), Kind::RecvActivation});
    scattered.compare({StageId(s), Kind::RecvGrad}, {StageId(s + 1), Kind::SendGrad});
  }
  for (std::size_t i = 1; i < tied.size(); ++i) {
    scattered.compare({tied.front(), Kind::ReduceTiedGrads}, {tied[i], Kind::ReduceTiedGrads});
  }
  return scattered.take();
}

std::vector<Diagnostic> circles(const SteppedSchedule& schedule, const std::vector<StageId>& tied) {
  return SteppedReplay(schedule, tied).run();
}

std::string window(const SteppedSchedule& schedule, const InstructionPlace& place) {
  std::string text = str("stage ", place.stage, " step ", place.step, ":");
  const Step& step = step_of(schedule, place);
  for (std::size_t i = 0; i < step.size(); ++i) {
    const std::string instruction = to_string(step[i]);
    text +=
        static_cast<std::int32_t>(i) == place.index ? " [" + instruction + "]" : " " + instruction;
  }
  return text;
}

}  // namespace penstock::verify
