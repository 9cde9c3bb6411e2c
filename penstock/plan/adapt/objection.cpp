#include "penstock/plan/adapt/objection.h"

#include <algorithm>
#include <vector>

#include "penstock/core/counted.h"
#include "penstock/core/text.h"

namespace penstock::adapt {
namespace {

using schedule::Op;
using schedule::Schedule;
using Order = std::vector<Microbatch>;
using Text = std::optional<std::string>;

Text objection_to_replicas(const Schedule& schedule) {
  if (schedule.replicas == 1) return {};
  return str("a program of ", schedule.replicas, " replicas keeps its order");
}

Text objection_to_sizes(const Schedule& now, const Schedule& next) {
  if (now.ranks() == next.ranks() && now.stages == next.stages &&
      now.microbatches == next.microbatches) {
    return {};
  }
  const auto sizes = [](const Schedule& schedule) {
    return str(counted(schedule.ranks(), "rank"), ", ", counted(schedule.stages, "stage"), " and ",
               counted(schedule.microbatches, "microbatch", "microbatches"));
  };
  return str("it has ", sizes(next), ", the run has ", sizes(now));
}

Text objection_to_placement(const verify::VerifiedSchedule& now,
                            const verify::VerifiedSchedule& next) {
  for (std::int32_t s = 0; s < now.schedule().stages; ++s) {
    const Rank is = now.rank_of(StageId(s)), would_be = next.rank_of(StageId(s));
    if (is != would_be) {
      return str("it has stage ", s, " on rank ", would_be, ", its weights are on rank ", is);
    }
  }
  return {};
}

bool is_forward(Op op) { return op == Op::Forward; }
bool adds_gradients(Op op) { return op == Op::Backward || op == Op::BackwardWeight; }

// Lists, for each stage, the microbatches in the order of the actions that count.
std::vector<Order> orders_of(const Schedule& schedule, bool (*counts)(Op)) {
  std::vector<Order> orders(static_cast<std::size_t>(schedule.stages));
  for (const schedule::Program& program : schedule.programs) {
    for (const schedule::Action& action : program) {
      if (counts(action.op)) orders[action.stage.index()].push_back(*action.microbatch);
    }
  }
  return orders;
}

Text objection_to_orders(const Schedule& now, const Schedule& next, bool (*counts)(Op),
                         const char* what) {
  const auto is = orders_of(now, counts), would_be = orders_of(next, counts);
  for (std::size_t s = 0; s < is.size(); ++s) {
    if (is[s] == would_be[s]) continue;
    return str("stage ", s, " would ", what, " in the order ", join(would_be[s], " "),
               ", does it in the order ", join(is[s], " "));
  }
  return {};
}

Text objection_to_misorder(const Schedule& now, bool (*counts)(Op), const char* what) {
  const auto orders = orders_of(now, counts);
  for (std::size_t s = 0; s < orders.size(); ++s) {
    if (std::ranges::is_sorted(orders[s])) continue;
    return str("stage ", s, " ", what, " of microbatches in the order ", join(orders[s], " "),
               ", which would have to stay");
  }
  return {};
}

Text objection_to_memory(const verify::VerifiedSchedule& next, const Terms& terms) {
  const auto& would_hold = next.facts().peak_activations;
  for (std::size_t rank = 0; rank < would_hold.size(); ++rank) {
    if (would_hold[rank] <= terms.room[rank]) continue;
    return str("rank ", rank, " of the pipe would hold ", would_hold[rank],
               " activations at once, has room for ", terms.room[rank]);
  }
  return {};
}

}  // namespace

std::optional<std::string> objection_to_order(const verify::VerifiedSchedule& now, Sums sums) {
  if (auto text = objection_to_misorder(now.schedule(), is_forward, "runs the forwards")) {
    return text;
  }
  if (sums == Sums::Invariant) return {};
  return objection_to_misorder(now.schedule(), adds_gradients, "adds the gradients");
}

Terms terms_of(const verify::VerifiedSchedule& first, Sums sums) {
  return {.sums = sums, .room = first.facts().peak_activations};
}

std::optional<std::string> objection_to_change(const verify::VerifiedSchedule& now,
                                               const verify::VerifiedSchedule& next,
                                               const Terms& terms) {
  const Schedule& before = now.schedule();
  const Schedule& after = next.schedule();
  if (auto text = objection_to_replicas(before)) return text;
  if (auto text = objection_to_replicas(after)) return text;
  if (auto text = objection_to_sizes(before, after)) return text;
  if (auto text = objection_to_placement(now, next)) return text;
  if (auto text = objection_to_orders(before, after, is_forward, "run its forwards")) return text;
  if (terms.sums == Sums::InOrderOfProgram) {
    if (auto text = objection_to_orders(before, after, adds_gradients, "add its gradients")) {
      return text;
    }
  }
  return objection_to_memory(next, terms);
}

}  // namespace penstock::adapt
