#include "penstock/verify/verify.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/verify/replay.h"
#include "penstock/verify/shards.h"
#include "penstock/verify/table.h"

namespace penstock::verify {
namespace {

using schedule::Action;
using schedule::Op;
using schedule::Program;
using schedule::Purpose;
using schedule::Schedule;

constexpr std::int32_t kWindow = 4;  // Actions shown on each side of the one objected to.

// "1F0 1B0 [1F1] 1B1": the program around a step, the step itself in brackets.
std::string window(const Program& program, std::int32_t step) {
  const std::int32_t begin = std::max(0, step - kWindow);
  const std::int32_t end = std::min(step + kWindow + 1, static_cast<std::int32_t>(program.size()));
  std::string text = begin > 0 ? "..." : "";
  for (std::int32_t i = begin; i < end; ++i) {
    const std::string action = schedule::to_string(program[static_cast<std::size_t>(i)]);
    if (!text.empty()) text += ' ';
    text += i == step ? "[" + action + "]" : action;
  }
  return end < static_cast<std::int32_t>(program.size()) ? text + " ..." : text;
}

class Verifier {
 public:
  Verifier(const Schedule& schedule, const Limits& limits)
      : schedule_(schedule), limits_(limits), lowered_(schedule::is_lowered(schedule)) {}

  Verdict run() {
    if (check_size()) check_actions();
    if (verdict_.diagnostics.empty()) check_whole();
    const auto place = [](const Diagnostic& d) { return std::pair(d.rank, d.step); };
    std::ranges::stable_sort(verdict_.diagnostics, {}, place);
    return std::move(verdict_);
  }

 private:
  // Keeps the table in proportion to the schedule: two actions can name 2^48 cells.
  bool check_size() {
    if (schedule_.stages < 1 || schedule_.microbatches < 1 || schedule_.programs.empty()) {
      object(Code::Missing, "the schedule is empty");
      return false;
    }
    std::int64_t actions = 0;
    for (const Program& program : schedule_.programs) actions += std::ssize(program);
    const std::int64_t cells = std::int64_t{schedule_.stages} * schedule_.microbatches;
    if (cells <= 4096 + 4 * actions) return true;
    object(Code::Missing,
           str(schedule_.stages, " stages x ", schedule_.microbatches, " microbatches need ", cells,
               " forwards, the schedule has ", actions, " actions in all"),
           {"number stages and microbatches from 0 without gaps"});
    return false;
  }

  void check_actions() {
    table_ = Table(schedule_.stages, schedule_.microbatches);
    rank_of_stage_.assign(static_cast<std::size_t>(schedule_.stages), {});
    for_each_action([&](const Action& action, Place place) { enter(action, place); });
    if (!out_of_range_) {
      check_complete();
      for_each_action([&](const Action& action, Place place) { check_order(action, place); });
      check_reductions();
      check_shards();
    }
  }

  template <class Visit>
  void for_each_action(const Visit& visit) const {
    for (std::size_t rank = 0; rank < schedule_.programs.size(); ++rank) {
      const Program& program = schedule_.programs[rank];
      for (std::size_t step = 0; step < program.size(); ++step) {
        visit(program[step], Place{Rank(rank), static_cast<std::int32_t>(step)});
      }
    }
  }

  void object(Code code, std::string message, std::vector<std::string> notes = {}) {
    verdict_.diagnostics.push_back({.code = code,
                                    .rank = {},
                                    .step = {},
                                    .message = std::move(message),
                                    .notes = std::move(notes)});
  }

  void object(Code code, const Place& place, std::string message, const std::string& repair) {
    verdict_.diagnostics.push_back(
        {.code = code,
         .rank = place.rank,
         .step = place.step,
         .message = std::move(message),
         .notes = {str("rank ", place.rank, ": ",
                       window(schedule_.programs[place.rank.index()], place.step)),
                   repair}});
  }

  static std::string at(const Place& place) {
    return str("rank ", place.rank, " step ", place.step);
  }

  bool in_range(const Action& action) const {
    return action.stage.value >= 0 && action.stage.value < schedule_.stages &&
           (!action.microbatch ||
            (action.microbatch->value >= 0 && action.microbatch->value < schedule_.microbatches)) &&
           (action.microbatch ? schedule::may_have_microbatch(action.op)
                              : !schedule::has_microbatch(action.op));
  }

  void enter(const Action& action, const Place& place) {
    const bool stage_ok = action.stage.value >= 0 && action.stage.value < schedule_.stages;
    if (!in_range(action)) {
      out_of_range_ = true;
      object(stage_ok ? Code::BadMicrobatch : Code::BadStage, place,
             str(action, " is out of range"),
             str("stages are 0 to ", schedule_.stages - 1, ", microbatches 0 to ",
                 schedule_.microbatches - 1));
      return;
    }
    const bool repeatable = action.op == Op::Unshard || action.op == Op::Reshard;
    if (const auto& first = table_.at(action); first && !repeatable) {
      object(Code::Duplicate, place, str(action, " runs again"),
             str("it first runs at ", at(*first), "; remove one of the two"));
      return;
    }
    if (schedule_.purpose == Purpose::Forward && belongs_to_backward(action.op)) {
      object(Code::UnexpectedBackward, place, str(action, " in a forward-only schedule"),
             "remove it, or add every backward");
    }
    table_.set(action, place);
    auto& holder = rank_of_stage_[action.stage.index()];
    if (!holder) holder = place;
    if (holder->rank != place.rank) {
      object(Code::StageOnTwoRanks, place, str(action, " runs stage ", action.stage),
             str("stage ", action.stage, " lives on rank ", holder->rank, " since step ",
                 holder->step, "; keep all of its actions on one rank"));
    }
  }

  static bool belongs_to_backward(Op op) {
    switch (op) {
      case Op::Backward:
      case Op::BackwardInput:
      case Op::BackwardWeight:
      case Op::SendBackward:
      case Op::RecvBackward:
      case Op::ReduceGradients:
        return true;
      case Op::Forward:
      case Op::SendForward:
      case Op::RecvForward:
      case Op::Unshard:
      case Op::Reshard:
        return false;
    }
    return false;
  }

  void check_complete() {
    for (std::size_t rank = 0; rank < schedule_.programs.size(); ++rank) {
      if (!schedule_.programs[rank].empty()) continue;
      object(Code::Missing, str("rank ", rank, " has no actions"),
             {"give it a stage, or remove its row"});
    }
    for (std::int32_t s = 0; s < schedule_.stages; ++s) {
      if (!rank_of_stage_[StageId(s).index()]) {
        object(Code::Missing, str("stage ", s, " runs nowhere"),
               {str("the schedule says it has ", schedule_.stages, " stages")});
        continue;
      }
      for (std::int32_t m = 0; m < schedule_.microbatches; ++m) {
        require({.stage = StageId(s), .op = Op::Forward, .microbatch = Microbatch(m)});
        if (schedule_.purpose == Purpose::Train) require_backward(StageId(s), Microbatch(m));
      }
    }
  }

  void require(const Action& action) {
    if (table_.at(action)) return;
    object(Code::Missing, str(action, " is missing"),
           {str("stage ", action.stage, " lives on rank ",
                rank_of_stage_[action.stage.index()]->rank, "; add ", action, " there")});
  }

  // Either a B, or an I and a W.
  void require_backward(StageId stage, Microbatch microbatch) {
    const Action whole{.stage = stage, .op = Op::Backward, .microbatch = microbatch};
    const Action input{.stage = stage, .op = Op::BackwardInput, .microbatch = microbatch};
    const Action weight{.stage = stage, .op = Op::BackwardWeight, .microbatch = microbatch};
    const bool any_half = table_.at(input) || table_.at(weight);
    if (!any_half) return require(whole);
    if (!table_.at(whole)) {
      require(input);
      require(weight);
      return;
    }
    const Action& half = table_.at(input) ? input : weight;
    object(Code::TwoBackwards, *table_.at(half), str(half, " runs beside ", whole),
           str(whole, " is at ", at(*table_.at(whole)), "; keep the one or the other"));
  }

  bool same_rank(StageId a, StageId b) const {
    const auto& rank_a = rank_of_stage_[a.index()];
    const auto& rank_b = rank_of_stage_[b.index()];
    return rank_a && rank_b && rank_a->rank == rank_b->rank;
  }

  // `action` at `place` needs what `input` makes, which must stand earlier in the same program.
  void check_before(const Action& action, const Place& place, const Action& needed) {
    const Action input = table_.maker_of(needed);
    const auto& input_place = table_.at(input);
    if (!input_place || input_place->rank != place.rank) return;  // Missing: said elsewhere.
    if (input_place->step < place.step) return;
    object(Code::BeforeItsInput, place, str(action, " runs before ", input),
           str(action, " needs ", input, ", which is at ", at(*input_place), "; swap them"));
  }

  void check_order(const Action& action, const Place& place) {
    switch (action.op) {
      case Op::Forward:
        if (action.overlaps_next) check_overlap(action, place);
        return check_compute(action, place);
      case Op::Backward:
      case Op::BackwardInput:
      case Op::BackwardWeight:
        return check_compute(action, place);
      case Op::SendForward:
        return check_send(action, place, Op::Forward);
      case Op::SendBackward:
        return check_send(action, place, Op::Backward);
      case Op::RecvForward:
      case Op::RecvBackward:
        return check_partner(action, place, Code::UnpairedReceive);
      case Op::ReduceGradients:
        return check_reduce(action, place);
      case Op::Unshard:
      case Op::Reshard:
        return;  // check_shards() follows them through the whole program.
    }
  }

  // The B of the same microbatch, on whatever stage, needs the F: the two cannot overlap.
  void check_overlap(const Action& action, const Place& place) {
    const Program& program = schedule_.programs[place.rank.index()];
    const auto next = static_cast<std::size_t>(place.step) + 1;
    if (next >= program.size() || program[next].op != Op::Backward) {
      object(Code::BadOverlap, place, str(action, " overlaps no backward"),
             "put a B right behind it");
    } else if (program[next].microbatch == action.microbatch) {
      object(Code::BadOverlap, place, str(action, " overlaps ", program[next], ", which needs it"),
             "overlap backwards of earlier microbatches");
    }
  }

  void check_compute(const Action& action, const Place& place) {
    const Needs needs = needs_of(action, schedule_.stages);
    if (needs.own) check_before(action, place, *needs.own);
    if (!needs.arrival) return;
    if (same_rank(needs.arrival->stage, action.stage)) {
      check_before(action, place, *needs.arrival);
    } else if (lowered_) {
      const Action receive{.stage = action.stage,
                           .op = action.op == Op::Forward ? Op::RecvForward : Op::RecvBackward,
                           .microbatch = action.microbatch};
      if (table_.at(receive)) {
        check_before(action, place, receive);
      } else {
        object(Code::NotReceived, place, str(action, " never receives its input"),
               str("add ", receive, " before it"));
      }
    }
  }

  void check_send(const Action& action, const Place& place, Op producer) {
    check_before(action, place,
                 {.stage = action.stage, .op = producer, .microbatch = action.microbatch});
    check_partner(action, place, Code::UnpairedSend);
  }

  void check_partner(const Action& action, const Place& place, Code code) {
    const Action partner = schedule::other_end(action);
    if (!in_range(partner)) {
      object(Code::BadStage, place, str(action, " has no stage at its other end"),
             str("stages are 0 to ", schedule_.stages - 1));
    } else if (same_rank(partner.stage, action.stage)) {
      object(Code::LocalMessage, place, str(action, " stays on rank ", place.rank),
             str("stages ", partner.stage, " and ", action.stage,
                 " share a rank and hand over directly; remove it"));
    } else if (!table_.at(partner)) {
      const auto& holder = rank_of_stage_[partner.stage.index()];
      object(code, place, str(action, " has no partner ", partner),
             holder ? str("add ", partner, " on rank ", holder->rank)
                    : str("stage ", partner.stage, " runs nowhere"));
    }
  }

  void check_reduce(const Action& action, const Place& place) {
    any_reduce_ = true;
    const std::int32_t begin = action.microbatch ? action.microbatch->value : 0;
    const std::int32_t end = action.microbatch ? begin + 1 : schedule_.microbatches;
    for (std::int32_t m = begin; m < end; ++m) {
      const Action whole{.stage = action.stage, .op = Op::Backward, .microbatch = Microbatch(m)};
      const Action weight{
          .stage = action.stage, .op = Op::BackwardWeight, .microbatch = Microbatch(m)};
      const Action& backward = table_.at(weight) ? weight : whole;
      const auto& last = table_.at(backward);
      if (last && last->rank == place.rank && last->step > place.step) {
        object(Code::ReduceTooEarly, place, str(action, " runs before ", backward),
               str("move it behind ", at(*last)));
        return;
      }
    }
  }

  void check_reductions() {
    if (!any_reduce_) return;
    for (std::int32_t s = 0; s < schedule_.stages; ++s) check_reductions_of(StageId(s));
  }

  // Either one REDUCE_GRAD of all microbatches, or one of each.
  void check_reductions_of(StageId stage) {
    const Action of_all{.stage = stage, .op = Op::ReduceGradients};
    std::vector<Action> present;
    std::vector<Action> absent;
    for (std::int32_t m = 0; m < schedule_.microbatches; ++m) {
      const Action of_one{.stage = stage, .op = Op::ReduceGradients, .microbatch = Microbatch(m)};
      (table_.at(of_one) ? present : absent).push_back(of_one);
    }
    if (table_.at(of_all)) {
      for (const Action& reduce : present) {
        object(Code::Duplicate, *table_.at(reduce), str(reduce, " runs beside ", of_all),
               "both sum the gradients of that microbatch; remove one of the two");
      }
    } else if (present.empty()) {
      object(Code::NotReduced, str("stage ", stage, " has no REDUCE_GRAD, other stages have one"),
             {str("add ", of_all, " after its last backward")});
    } else {
      for (const Action& reduce : absent) {
        object(
            Code::NotReduced, str(reduce, " is missing, other microbatches have theirs"),
            {str("add it after the B or W of stage ", stage, ", microbatch ", *reduce.microbatch)});
      }
    }
  }

  void check_shards() {
    for (std::size_t rank = 0; rank < schedule_.programs.size(); ++rank) {
      for (ShardFault& fault : shard_faults(schedule_.programs[rank])) {
        object(fault.code, {Rank(rank), fault.step}, std::move(fault.message), fault.repair);
      }
    }
  }

  void check_whole() {
    for (const auto& place : rank_of_stage_) verdict_.facts.rank_of_stage.push_back(place->rank);
    if (auto deadlock = replay(schedule_, verdict_.facts.rank_of_stage)) {
      verdict_.diagnostics.push_back(std::move(*deadlock));
      return;
    }
    for (std::size_t rank = 0; rank < schedule_.programs.size(); ++rank) count_activations(rank);
  }

  static bool ends_activation(Op op) { return op == Op::Backward || op == Op::BackwardWeight; }

  void count_activations(std::size_t rank) {
    std::int32_t alive = 0;
    std::int32_t peak = 0;
    std::int32_t peak_step = 0;
    const Program& program = schedule_.programs[rank];
    for (std::size_t step = 0; step < program.size(); ++step) {
      if (schedule_.purpose == Purpose::Forward) break;
      if (program[step].op == Op::Forward) ++alive;
      if (alive > peak) {
        peak = alive;
        peak_step = static_cast<std::int32_t>(step);
      }
      if (ends_activation(program[step].op)) --alive;
    }
    verdict_.facts.peak_activations.push_back(peak);
    if (limits_.activations_max && peak > *limits_.activations_max) {
      object(Code::TooManyActivations, {Rank(rank), peak_step},
             str("holds ", peak, " activations, ", *limits_.activations_max, " allowed"),
             "run backwards earlier, or allow more");
    }
  }

  const Schedule& schedule_;
  const Limits& limits_;
  bool lowered_;
  bool out_of_range_ = false;
  bool any_reduce_ = false;
  Table table_{0, 0};
  std::vector<std::optional<Place>> rank_of_stage_;
  Verdict verdict_;
};

}  // namespace

std::string to_string(Code code) {
  char text[8];
  std::snprintf(text, sizeof text, "S%03d", static_cast<int>(code));
  return text;
}

std::string to_string(const Diagnostic& diagnostic) {
  std::string text;
  if (diagnostic.rank) text += str("rank ", *diagnostic.rank, " ");
  if (diagnostic.step) text += str("step ", *diagnostic.step);
  if (!text.empty()) text += ": ";
  text += str(diagnostic.message, " [", to_string(diagnostic.code), "]");
  for (const std::string& note : diagnostic.notes) text += "\n  note: " + note;
  return text;
}

Verdict verify(const Schedule& schedule, const Limits& limits) {
  return Verifier(schedule, limits).run();
}

VerifiedSchedule VerifiedSchedule::from(Schedule schedule, const Limits& limits) {
  Verdict verdict = verify(schedule, limits);
  if (verdict.diagnostics.empty()) {
    return VerifiedSchedule(std::move(schedule), std::move(verdict.facts));
  }
  constexpr std::size_t kShown = 20;
  std::string text = str("schedule ", schedule::title(schedule), ": ", verdict.diagnostics.size(),
                         verdict.diagnostics.size() == 1 ? " objection" : " objections");
  for (std::size_t i = 0; i < std::min(kShown, verdict.diagnostics.size()); ++i) {
    text += "\n" + to_string(verdict.diagnostics[i]);
  }
  if (verdict.diagnostics.size() > kShown) {
    text += str("\n... and ", verdict.diagnostics.size() - kShown, " more");
  }
  throw ScheduleError(text);
}

VerifiedSchedule::VerifiedSchedule(Schedule schedule, Facts facts)
    : schedule_(std::move(schedule)), facts_(std::move(facts)) {}

}  // namespace penstock::verify
