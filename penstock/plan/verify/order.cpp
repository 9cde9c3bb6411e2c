#include "penstock/plan/verify/order.h"

#include <algorithm>

#include "penstock/core/text.h"

namespace penstock::verify {
namespace {

using schedule::Action;
using schedule::Op;
using schedule::Program;
using schedule::Schedule;

class Order {
 public:
  Order(const Schedule& schedule, const Entries& entries, Objections& objections)
      : schedule_(schedule),
        entries_(entries),
        table_(entries.table),
        objections_(objections),
        lowered_(schedule::is_lowered(schedule)) {}

  void check() {
    for (std::size_t rank = 0; rank < schedule_.programs.size(); ++rank) {
      const Program& program = schedule_.programs[rank];
      for (std::size_t step = 0; step < program.size(); ++step) {
        check_action(program[step], {Rank(rank), static_cast<std::int32_t>(step)});
      }
    }
    if (!any_reduce_) return;
    for (std::int32_t s = 0; s < schedule_.stages; ++s) check_reductions_of(StageId(s));
  }

 private:
  void check_action(const Action& action, const Place& place) {
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
        return;  // shards.h follows them through the whole program.
    }
  }

  // `action` at `place` needs what `needed` makes, which must stand earlier in the same program.
  void check_before(const Action& action, const Place& place, const Action& needed) {
    const Action input = table_.maker_of(needed);
    // What is missing, or on another rank, is objected to elsewhere.
    if (!table_.is_at_or_behind(input, place)) return;
    objections_.add(
        Code::BeforeItsInput, place, str(action, " runs before ", input),
        str(action, " needs ", input, ", which is at ", *table_.at(input), "; swap them"));
  }

  // Backwards of the same microbatch, on whatever stage, need the F: the two cannot overlap.
  void check_overlap(const Action& action, const Place& place) {
    const Program& program = schedule_.programs[place.rank.index()];
    const auto next = static_cast<std::size_t>(place.step) + 1;
    if (next >= program.size() || !schedule::is_backward(program[next].op)) {
      objections_.add(Code::BadOverlap, place, str(action, " overlaps no backward"),
                      "put a B, an I or a W right behind it");
    } else if (program[next].microbatch == action.microbatch) {
      objections_.add(Code::BadOverlap, place,
                      str(action, " overlaps ", program[next], ", which needs it"),
                      "overlap backwards of earlier microbatches");
    }
  }

  void check_compute(const Action& action, const Place& place) {
    const Needs needs = needs_of(action, schedule_.stages);
    if (needs.own) check_before(action, place, *needs.own);
    if (!needs.arrival) return;
    if (entries_.same_rank(needs.arrival->stage, action.stage, action.microbatch)) {
      check_before(action, place, *needs.arrival);
    } else if (lowered_) {
      check_received(action, place);
    }
  }

  void check_received(const Action& action, const Place& place) {
    const Action receive{.stage = action.stage,
                         .op = action.op == Op::Forward ? Op::RecvForward : Op::RecvBackward,
                         .microbatch = action.microbatch};
    if (table_.has(receive)) return check_before(action, place, receive);
    objections_.add(Code::NotReceived, place, str(action, " never receives its input"),
                    str("add ", receive, " before it"));
  }

  void check_send(const Action& action, const Place& place, Op producer) {
    check_before(action, place,
                 {.stage = action.stage, .op = producer, .microbatch = action.microbatch});
    check_partner(action, place, Code::UnpairedSend);
  }

  void check_partner(const Action& action, const Place& place, Code code) {
    const Action partner = schedule::other_end(action);
    if (!in_range(partner, schedule_)) {
      objections_.add(Code::BadStage, place, str(action, " has no stage at its other end"),
                      str("stages are 0 to ", schedule_.stages - 1));
    } else if (entries_.same_rank(partner.stage, action.stage, action.microbatch)) {
      objections_.add(Code::LocalMessage, place, str(action, " stays on rank ", place.rank),
                      str("stages ", partner.stage, " and ", action.stage,
                          " share a rank and hand over directly; remove it"));
    } else if (!table_.has(partner)) {
      const auto& home = entries_.home.of(partner.stage, partner.microbatch);
      objections_.add(code, place, str(action, " has no partner ", partner),
                      home ? str("add ", partner, " on rank ", home->rank)
                           : str("stage ", partner.stage, " runs nowhere"));
    }
  }

  void check_reduce(const Action& action, const Place& place) {
    any_reduce_ = true;
    const std::int32_t begin = action.microbatch ? action.microbatch->value : 0;
    const std::int32_t end = action.microbatch ? begin + 1 : schedule_.microbatches;
    for (std::int32_t m = begin; m < end; ++m) {
      const auto of = [&](Op op) {
        return Action{.stage = action.stage, .op = op, .microbatch = Microbatch(m)};
      };
      const Action backward =
          of(table_.has(of(Op::BackwardWeight)) ? Op::BackwardWeight : Op::Backward);
      if (!table_.is_at_or_behind(backward, place)) continue;
      objections_.add(Code::ReduceTooEarly, place, str(action, " runs before ", backward),
                      str("move it behind ", *table_.at(backward)));
      return;
    }
  }

  // Either one REDUCE_GRAD of all microbatches, or one of each.
  void check_reductions_of(StageId stage) {
    const Action of_all{.stage = stage, .op = Op::ReduceGradients};
    const bool all = table_.has(of_all);
    std::vector<Action> faulty;  // Extra ones beside `of_all`, or the ones that are missing.
    for (std::int32_t m = 0; m < schedule_.microbatches; ++m) {
      const Action of_one{.stage = stage, .op = Op::ReduceGradients, .microbatch = Microbatch(m)};
      if (table_.has(of_one) == all) faulty.push_back(of_one);
    }
    if (all) {
      require_reducers(stage);
      for (const Action& reduce : faulty) {
        objections_.add(Code::Duplicate, *table_.at(reduce), str(reduce, " runs beside ", of_all),
                        "both sum the gradients of that microbatch; remove one of the two");
      }
    } else if (std::ssize(faulty) == schedule_.microbatches) {
      objections_.add(Code::NotReduced,
                      str("stage ", stage, " has no REDUCE_GRAD, other stages have one"),
                      {str("add ", of_all, " after its last backward")});
    } else {
      for (const Action& reduce : faulty) {
        objections_.add(
            Code::NotReduced, str(reduce, " is missing, other microbatches have theirs"),
            {str("add it after the B or W of stage ", stage, ", microbatch ", *reduce.microbatch)});
      }
    }
  }

  // Every rank that has a copy of the stage, of several replicas.
  void require_reducers(StageId stage) {
    const std::vector<Rank>& reducers = entries_.reducers[stage.index()];
    for (const Rank rank : entries_.copies[stage.index()]) {
      if (std::ranges::find(reducers, rank) != reducers.end()) continue;
      objections_.add(Code::NotReduced,
                      str("stage ", stage, " has no REDUCE_GRAD on rank ", rank,
                          ", other ranks with the stage have one"),
                      {"add it after the rank's last backward of the stage"});
    }
  }

  const Schedule& schedule_;
  const Entries& entries_;
  const Table& table_;
  Objections& objections_;
  bool lowered_;
  bool any_reduce_ = false;
};

}  // namespace

void check_order(const Schedule& schedule, const Entries& entries, Objections& objections) {
  Order(schedule, entries, objections).check();
}

}  // namespace penstock::verify
