#include "penstock/plan/verify/entries.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "penstock/core/counted.h"
#include "penstock/core/text.h"

namespace penstock::verify {
namespace {

using schedule::Action;
using schedule::Op;
using schedule::Program;
using schedule::Purpose;
using schedule::Schedule;

bool belongs_to_backward(Op op) {
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

// Keeps the table in proportion to the schedule: two actions can name 2^48 cells.
bool check_size(const Schedule& schedule, Objections& objections) {
  if (schedule.stages < 1 || schedule.microbatches < 1 || schedule.programs.empty()) {
    objections.add(Code::Missing, "the schedule is empty");
    return false;
  }
  std::int64_t actions = 0;
  for (const Program& program : schedule.programs) actions += std::ssize(program);
  const std::int64_t cells = std::int64_t{schedule.stages} * schedule.microbatches;
  if (cells <= 4096 + 4 * actions) return true;
  objections.add(Code::Missing,
                 str(counted(schedule.stages, "stage"), " x ",
                     counted(schedule.microbatches, "microbatch", "microbatches"), " need ", cells,
                     " forwards, the schedule has ", counted(actions, "action"), " in all"),
                 {"number stages and microbatches from 0 without gaps"});
  return false;
}

// The rank with most actions of each stage; the first of them, of several.
std::vector<Rank> main_ranks(const Schedule& schedule) {
  std::vector<std::map<Rank, std::int64_t>> counts(static_cast<std::size_t>(schedule.stages));
  for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
    for (const Action& action : schedule.programs[rank]) {
      if (in_range(action, schedule)) ++counts[action.stage.index()][Rank(rank)];
    }
  }
  std::vector<Rank> ranks(counts.size());
  for (std::size_t stage = 0; stage < counts.size(); ++stage) {
    const auto most =
        std::ranges::max_element(counts[stage], {}, [](const auto& each) { return each.second; });
    if (most != counts[stage].end()) ranks[stage] = most->first;
  }
  return ranks;
}

class Entering {
 public:
  Entering(const Schedule& schedule, Objections& objections)
      : schedule_(schedule), objections_(objections), entries_(schedule) {}

  std::optional<Entries> run() {
    if (schedule_.replicas == 1 && is_scattered()) {
      const std::vector<Rank> homes = main_ranks(schedule_);
      const auto is_home = [&](const Action& action, Rank rank) {
        return !in_range(action, schedule_) || homes[action.stage.index()] == rank;
      };
      enter_all(is_home);
      // What is elsewhere finds out whether it is there already.
      enter_all([&](const Action& action, Rank rank) { return !is_home(action, rank); });
    } else {
      enter_all([](const Action&, Rank) { return true; });
    }
    if (!out_of_range_) check_complete();
    const bool is_one_fault = tell_misplaced();
    if (out_of_range_ || is_one_fault) return {};
    return std::move(entries_);
  }

 private:
  // An action where another one may be meant.
  struct Misplaced {
    Action action;
    Place place;
    Code code;
    std::string message;
    std::string repair;
  };

  // Whether some stage has actions on two ranks.
  bool is_scattered() const {
    std::vector<std::optional<Rank>> ranks(static_cast<std::size_t>(schedule_.stages));
    for (std::size_t rank = 0; rank < schedule_.programs.size(); ++rank) {
      for (const Action& action : schedule_.programs[rank]) {
        if (!in_range(action, schedule_)) continue;
        auto& seen = ranks[action.stage.index()];
        if (seen && *seen != Rank(rank)) return true;
        seen = Rank(rank);
      }
    }
    return false;
  }

  template <class IsMeant>
  void enter_all(const IsMeant& is_meant) {
    for (std::size_t rank = 0; rank < schedule_.programs.size(); ++rank) {
      const Program& program = schedule_.programs[rank];
      for (std::size_t step = 0; step < program.size(); ++step) {
        if (!is_meant(program[step], Rank(rank))) continue;
        enter(program[step], {Rank(rank), static_cast<std::int32_t>(step)});
      }
    }
  }

  void enter(const Action& action, const Place& place) {
    if (!in_range(action, schedule_)) return object_to_numbers(action, place);
    if (runs_again(action, place)) {
      misplaced_.push_back({.action = action,
                            .place = place,
                            .code = Code::Duplicate,
                            .message = str(action, " runs again"),
                            .repair = str("it first runs at ", *entries_.table.at(action),
                                          "; remove one of the two")});
      return;
    }
    if (schedule_.purpose == Purpose::Forward && belongs_to_backward(action.op)) {
      objections_.add(Code::UnexpectedBackward, place, str(action, " in a forward-only schedule"),
                      "remove it, or add every backward");
    }
    entries_.table.set(action, place);
    if (schedule_.replicas > 1) return enter_copy(action, place);
    auto& home = entries_.home.of(action.stage, {});
    if (!home) home = place;
    if (home->rank != place.rank) {
      misplaced_.push_back(
          {.action = action,
           .place = place,
           .code = Code::StageOnTwoRanks,
           .message = str(action, " runs stage ", action.stage),
           .repair = str("stage ", action.stage, " lives on rank ", home->rank, " since step ",
                         home->step, "; keep all of its actions on one rank")});
    }
  }

  // One that is there instead of the only one that is missing is one fault, not two.  Returns:
  // whether that is so.
  bool tell_misplaced() {
    const std::vector<Action>& missing = entries_.missing;
    const bool is_one_fault = misplaced_.size() == 1 && missing.size() == 1 &&
                              is_likely_meant(missing[0], misplaced_[0].action);
    for (Misplaced& each : misplaced_) {
      if (is_one_fault)
        each.repair = str("is ", missing[0], " meant, which is missing? ", each.repair);
      objections_.add(each.code, each.place, std::move(each.message), each.repair);
    }
    for (const Action& each : missing) {
      if (!is_one_fault) object_to_absence(each);
    }
    return is_one_fault;
  }

  // Whether the two differ in one number alone, so that it was mistyped.
  static bool is_likely_meant(const Action& meant, const Action& written) {
    return meant.op == written.op &&
           (meant.stage == written.stage) != (meant.microbatch == written.microbatch);
  }

  // What every rank with a copy of the stage does may be there once for each of them.
  bool runs_again(const Action& action, const Place& place) {
    if (action.op == Op::Unshard || action.op == Op::Reshard) return false;
    const bool of_all = action.op == Op::ReduceGradients && !action.microbatch;
    if (!of_all) return entries_.table.has(action);
    std::vector<Rank>& reducers = entries_.reducers[action.stage.index()];
    const bool is_first = reducers.empty();
    const bool is_new = add_to(reducers, place.rank);
    return schedule_.replicas == 1 ? !is_first : !is_new;
  }

  // Ranks come in rising order.
  static bool add_to(std::vector<Rank>& ranks, Rank rank) {
    if (!ranks.empty() && ranks.back() == rank) return false;
    ranks.push_back(rank);
    return true;
  }

  void enter_copy(const Action& action, const Place& place) {
    std::vector<Rank>& copies = entries_.copies[action.stage.index()];
    if (add_to(copies, place.rank) && std::ssize(copies) > schedule_.replicas) {
      objections_.add(
          Code::StageOnTwoRanks, place, str(action, " runs stage ", action.stage),
          str("stage ", action.stage, " lives on ranks ",
              join(std::span(copies).first(copies.size() - 1), ", "), "; a stage has at most ",
              schedule_.replicas, " copies, one per replica"));
    }
    if (!action.microbatch) return;
    auto& home = entries_.home.of(action.stage, action.microbatch);
    if (!home) home = place;
    if (home->rank != place.rank) {
      objections_.add(
          Code::StageOnTwoRanks, place,
          str(action, " runs microbatch ", *action.microbatch, " of stage ", action.stage),
          str("rank ", home->rank, " runs it since step ", home->step,
              "; keep all that a stage does for a microbatch on one rank"));
    }
  }

  void object_to_numbers(const Action& action, const Place& place) {
    out_of_range_ = true;
    const bool stage_ok = action.stage.value >= 0 && action.stage.value < schedule_.stages;
    objections_.add(stage_ok ? Code::BadMicrobatch : Code::BadStage, place,
                    str(action, " is out of range"),
                    str("stages are 0 to ", schedule_.stages - 1, ", microbatches 0 to ",
                        schedule_.microbatches - 1));
  }

  void check_complete() {
    for (std::size_t rank = 0; rank < schedule_.programs.size(); ++rank) {
      if (!schedule_.programs[rank].empty()) continue;
      objections_.add(Code::Missing, str("rank ", rank, " has no actions"),
                      {"give it a stage, or remove its row"});
    }
    const std::vector<bool> runs = microbatches_that_run();
    object_to_gaps("microbatch", "microbatches", runs,
                   str("there are microbatches 0 to ", schedule_.microbatches - 1,
                       "; number them from 0 without gaps"));
    std::vector<bool> stages_that_run;
    for (std::int32_t s = 0; s < schedule_.stages; ++s) {
      stages_that_run.push_back(!runs_nowhere(StageId(s)));
    }
    object_to_gaps(
        "stage", "stages", stages_that_run,
        str("there are stages 0 to ", schedule_.stages - 1, "; is the row of a rank missing?"));
    for (std::int32_t s = 0; s < schedule_.stages; ++s) {
      for (std::int32_t m = 0; m < schedule_.microbatches; ++m) {
        if (!stages_that_run[StageId(s).index()] || !runs[Microbatch(m).index()]) continue;
        require({.stage = StageId(s), .op = Op::Forward, .microbatch = Microbatch(m)});
        if (schedule_.purpose == Purpose::Train) require_backward(StageId(s), Microbatch(m));
      }
    }
  }

  // One objection to each run of numbers that nothing has.
  void object_to_gaps(const char* one, const char* many, const std::vector<bool>& runs,
                      const std::string& note) {
    for (std::size_t begin = 0; begin < runs.size(); ++begin) {
      if (runs[begin]) continue;
      std::size_t end = begin + 1;
      while (end < runs.size() && !runs[end]) ++end;
      objections_.add(Code::Missing,
                      end == begin + 1 ? str(one, " ", begin, " runs nowhere")
                                       : str(many, " ", begin, " to ", end - 1, " run nowhere"),
                      {note});
      begin = end;
    }
  }

  std::vector<bool> microbatches_that_run() const {
    std::vector<bool> runs(static_cast<std::size_t>(schedule_.microbatches));
    for (const Program& program : schedule_.programs) {
      for (const Action& action : program) {
        if (action.microbatch) runs[action.microbatch->index()] = true;
      }
    }
    return runs;
  }

  bool runs_nowhere(StageId stage) const {
    return schedule_.replicas == 1 ? !entries_.home.of(stage, {})
                                   : entries_.copies[stage.index()].empty();
  }

  void require(const Action& action) {
    if (!entries_.table.has(action)) entries_.missing.push_back(action);
  }

  void object_to_absence(const Action& action) {
    const auto& home = entries_.home.of(action.stage, action.microbatch);
    const Rank rank = home ? home->rank : entries_.copies[action.stage.index()].front();
    objections_.add(
        Code::Missing, str(action, " is missing"),
        {str("stage ", action.stage, " lives on rank ", rank, "; add ", action, " there")});
  }

  // Either a B, or an I and a W.
  void require_backward(StageId stage, Microbatch microbatch) {
    const Action whole{.stage = stage, .op = Op::Backward, .microbatch = microbatch};
    const Action input{.stage = stage, .op = Op::BackwardInput, .microbatch = microbatch};
    const Action weight{.stage = stage, .op = Op::BackwardWeight, .microbatch = microbatch};
    const Table& table = entries_.table;
    if (!table.has(input) && !table.has(weight)) return require(whole);
    if (!table.has(whole)) {
      require(input);
      require(weight);
      return;
    }
    const Action& half = table.has(input) ? input : weight;
    objections_.add(Code::TwoBackwards, *table.at(half), str(half, " runs beside ", whole),
                    str(whole, " is at ", *table.at(whole), "; keep the one or the other"));
  }

  const Schedule& schedule_;
  Objections& objections_;
  Entries entries_;
  std::vector<Misplaced> misplaced_;
  bool out_of_range_ = false;
};

}  // namespace

std::optional<Entries> enter(const Schedule& schedule, Objections& objections) {
  if (!check_size(schedule, objections)) return {};
  return Entering(schedule, objections).run();
}

}  // namespace penstock::verify
