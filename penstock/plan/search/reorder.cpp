#include "penstock/plan/search/reorder.h"

#include <algorithm>
#include <string>
#include <utility>

#include "penstock/core/text.h"
#include "penstock/plan/search/pieces.h"
#include "penstock/plan/search/variant.h"
#include "penstock/plan/search/whole_backwards.h"

namespace penstock::search {
namespace {

using schedule::Schedule;

// More than this takes longer than a run should wait.
constexpr std::int64_t kReorderedTurnsMax = 400'000;

Stages stages_of(const Reorder& request) {
  const Schedule& schedule = request.schedule.schedule();
  return {.ranks = schedule.ranks(),
          .per_rank = schedule.stages / schedule.ranks(),
          .microbatches = schedule.microbatches,
          .costs = request.costs,
          .memory_of_ranks = request.memory_max};
}

bool keeps_to(const verify::VerifiedSchedule& order, const Reorder& request) {
  const auto peaks = simulate::simulate(order, request.costs, simulate::Detail::Totals).peak_memory;
  for (std::size_t rank = 0; rank < peaks.size(); ++rank) {
    if (peaks[rank] > request.memory_max[rank] * (1.0 + kRounding)) return false;
  }
  return true;
}

class Reordering {
 public:
  Reordering(const Reorder& request, const Budget& budget)
      : request_(request),
        budget_(budget),
        variant_(stages_of(request), Placement::Any, request.schedule.facts().homes.of_stages()) {}

  Reordered run() {
    learn_what_there_is();
    std::vector<Work> work = {{&variant_, piece(Piece::Kind::Begin, 0, 0.5)}};
    work[0].piece.stop = [] { return false; };  // Never stops, so that there is an answer.
    while (!work.empty()) {
      for (Finding& finding : run_pieces(work)) variant_.learn(std::move(finding));
      ++rounds_;
      budget_.progress({rounds_, variant_.best().makespan, variant_.bound().makespan});
      work = is_over() ? std::vector<Work>{} : next_round();
    }
    return result();
  }

 private:
  // The order that the ranks have, with its backwards split.
  void learn_what_there_is() {
    auto order = variant_.problem().order_of(compute_order_of(request_.schedule.schedule()));
    if (!order) return;
    const auto fits_in = [&](const auto& turns) { return fits(variant_.problem(), turns); };
    if (!std::ranges::all_of(*order, fits_in)) return;
    Clock clock(variant_.problem());
    const double cost = clock.run(*order);
    if (cost == kStuck) return;
    variant_.learn({.solution = {std::move(*order), clock.makespan(), cost}});
  }

  bool is_over() const {
    return rounds_ >= budget_.rounds || budget_.stop() ||
           variant_.bound().makespan >= makespan() * (1.0 - kRounding);
  }
  double makespan() const { return variant_.best().makespan + request_.costs.optimizer; }

  Piece piece(Piece::Kind kind, std::size_t number, double effort) const {
    return {.kind = kind,
            .seed = seed_of_piece(budget_.seed, rounds_, number),
            .effort = effort,
            .stop = budget_.stop};
  }

  std::vector<Work> next_round() const {
    std::vector<Work> work;
    for (std::size_t i = 0; i < kPieces; ++i) {
      const Piece::Kind kind = i + 1 < kPieces ? Piece::Kind::Repair : Piece::Kind::Tune;
      work.push_back({&variant_, piece(kind, i, static_cast<double>(rounds_))});
    }
    return work;
  }

  verify::VerifiedSchedule verified(const Order& order) const {
    return with_whole_backwards(
        verify::VerifiedSchedule::from(
            variant_.problem().schedule_of(order),
            {.activation = request_.costs.activation, .keep = request_.costs.keep}),
        request_.costs);
  }

  // The fastest of the order found, of generators' orders, and of the one that is there.  Where a
  // whole backward costs less than its halves, that last one may have more whole ones than a search
  // leaves.
  Reordered result() const {
    const simulate::Costs& costs = request_.costs;
    verify::VerifiedSchedule best = verified(variant_.best().order);
    const auto offer = [&](verify::VerifiedSchedule other) {
      if (keeps_to(other, request_) && makespan_of(other, costs) < makespan_of(best, costs)) {
        best = std::move(other);
      }
    };
    for (const Order& order : generated_orders(variant_.problem())) offer(verified(order));
    offer(verify::VerifiedSchedule::from(compute_order_of(request_.schedule.schedule())));
    auto simulation = simulate::simulate(best, costs);
    return {.schedule = std::move(best),
            .simulation = std::move(simulation),
            .bound = variant_.bound(),
            .rounds = rounds_};
  }

  const Reorder& request_;
  const Budget& budget_;
  Variant variant_;
  std::int64_t rounds_ = 0;
};

}  // namespace

std::optional<std::string> objection_to_reorder(const verify::VerifiedSchedule& verified) {
  const Schedule& schedule = verified.schedule();
  if (schedule.purpose != schedule::Purpose::Train) return "it has no backwards";
  if (schedule.replicas > 1) return "it is the schedule of several replicas";
  if (schedule.stages % schedule.ranks() != 0) {
    return str("its ", schedule.stages, " stages are not as many on each of ", schedule.ranks(),
               " ranks");
  }
  const std::int64_t turns = 3 * std::int64_t{schedule.stages} * schedule.microbatches;
  if (turns > kReorderedTurnsMax) {
    return str(schedule.stages, " stages times ", schedule.microbatches,
               " microbatches are more than ", kReorderedTurnsMax / 3);
  }
  return {};
}

Schedule compute_order_of(const Schedule& schedule) {
  Schedule order = schedule;
  for (schedule::Program& program : order.programs) {
    std::erase_if(program,
                  [](const schedule::Action& action) { return !schedule::is_compute(action.op); });
    for (schedule::Action& action : program) action.overlaps_next = false;
  }
  return order;
}

Reordered reorder(const Reorder& request, const Budget& budget) {
  return Reordering(request, budget).run();
}

}  // namespace penstock::search
