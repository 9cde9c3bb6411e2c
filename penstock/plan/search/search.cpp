#include "penstock/plan/search/search.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/counted.h"
#include "penstock/core/text.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/plan/search/pieces.h"
#include "penstock/plan/search/variant.h"
#include "penstock/plan/search/whole_backwards.h"

namespace penstock::search {
namespace {

using simulate::LowerBound;

// Placements that are not known ones, for each number of stages per rank: all of them, if there are
// at most kAll, or kOthers of them.
constexpr std::size_t kAll = 128;
constexpr std::size_t kOthers = 6;
// How many placements have a full first piece; where there are more, each has less.
constexpr double kFullPieces = 8.0;
// More actions than this would take hours.
constexpr std::int64_t kSearchedTurnsMax = 4'000'000;

bool is_by_stage(const simulate::Costs& costs) {
  return std::ranges::any_of(simulate::numbers_of_order(costs),
                             [](const auto* numbers) { return numbers->rows().size() > 1; });
}

void check(const Request& request) {
  std::vector<std::string> texts;
  const auto check_size = [&](std::string_view name, std::int32_t value) {
    if (value < 1) texts.push_back(str(name, " ", value, ": expected 1 or more"));
  };
  check_size("ranks", request.ranks);
  check_size("microbatches", request.microbatches);
  for (const std::int32_t each : request.stages_per_rank) check_size("stages per rank", each);
  if (request.stages_per_rank.empty()) texts.emplace_back("stages per rank: none is given");
  if (request.placements.empty()) texts.emplace_back("placements: none is given");
  if (!texts.empty()) throw ConfigError("search: " + join(texts, "\nsearch: "));
  for (const std::int32_t each : request.stages_per_rank) {
    const std::int64_t stages = std::int64_t{request.ranks} * each;
    if (stages > 0xFFFF || 3 * stages * request.microbatches > kSearchedTurnsMax) {
      throw ConfigError(
          str("search: ", counted(request.ranks, "rank"), ", ", counted(each, "stage"),
              " per rank, ", counted(request.microbatches, "microbatch", "microbatches"),
              ": at most ", kSearchedTurnsMax / 3,
              " stages times microbatches, and 65535 stages, can be searched"),
          {"more microbatches repeat what fewer ones do: search with fewer"});
    }
  }
}

// The sizes for each number of stages per rank that the costs fit.
std::vector<Stages> sizes_of(const Request& request) {
  const bool by_stage = is_by_stage(request.costs);
  std::vector<Stages> sizes;
  std::vector<std::string> misfits;
  for (const std::int32_t per_rank : request.stages_per_rank) {
    Stages stages{
        .ranks = request.ranks,
        .per_rank = per_rank,
        .microbatches = request.microbatches,
        .costs = by_stage ? request.costs : simulate::shared_by_stages(request.costs, per_rank),
        .memory_max = request.memory_max};
    schedule::Schedule shape{.stages = request.ranks * per_rank,
                             .microbatches = request.microbatches};
    shape.programs.resize(static_cast<std::size_t>(request.ranks));
    const auto texts = simulate::misfits(stages.costs, shape);
    misfits.insert(misfits.end(), texts.begin(), texts.end());
    if (texts.empty()) sizes.push_back(std::move(stages));
  }
  if (sizes.empty()) throw ConfigError("costs: " + join(misfits, "\ncosts: "));
  return sizes;
}

// What the fullest rank has to hold, to run one microbatch at a time.
double memory_of_one(const Stages& stages, const std::vector<Rank>& rank_of_stage) {
  double most = 0.0;
  for (std::int32_t m = 0; m < stages.microbatches; ++m) {
    std::vector<double> held(static_cast<std::size_t>(stages.ranks));
    for (std::size_t s = 0; s < rank_of_stage.size(); ++s) {
      held[rank_of_stage[s].index()] += stages.costs.activation.at(StageId(s), Microbatch(m));
    }
    most = std::max(most, std::ranges::max(held));
  }
  return most;
}

class Search {
 public:
  Search(const Request& request, const Budget& budget) : request_(request), budget_(budget) {
    double least_memory = std::numeric_limits<double>::infinity();
    for (const Stages& stages : sizes_of(request)) {
      for (const Placement placement : request.placements) {
        add(stages, placement, least_memory);
      }
    }
    if (!variants_.empty()) return;
    throw Infeasible(
        str("search: no schedule of these ranks holds at most ", shortest(*request.memory_max),
            ": one microbatch's activations, on all stages of a rank, take ",
            shortest(least_memory)),
        {str("allow a memory of ", shortest(least_memory), " or more"),
         "or divide the stages' activations: smaller microbatches, more ranks, or a placement that "
         "gives each rank an equal share"});
  }

  Result run() {
    std::vector<std::pair<std::size_t, Piece>> pieces;
    for (std::size_t i = 0; i < variants_.size(); ++i) {
      const double effort =
          0.5 * std::min(1.0, kFullPieces / static_cast<double>(variants_.size()));
      pieces.emplace_back(i, piece(Piece::Kind::Begin, i, effort));
    }
    // The first round is never cut, so that there is an answer.
    for (auto& [variant, each] : pieces) each.stop = [] { return false; };
    do {
      run_pieces(pieces);
      ++rounds_;
      budget_.progress({rounds_, makespan(), bound().makespan});
      pieces = next_pieces();
    } while (!pieces.empty() && rounds_ < budget_.rounds && !budget_.stop());
    return result();
  }

 private:
  void add(const Stages& stages, Placement placement, double& least_memory) {
    std::vector<std::vector<Rank>> placements;
    if (placement == Placement::Loop) {
      placements = {in_a_loop(stages)};
    } else if (placement == Placement::V) {
      placements = {to_and_fro(stages)};
    } else {
      auto all = all_placements(stages, kAll);
      const bool has_all = all.has_value();
      placements = has_all ? std::move(*all) : with_small_bounds(stages, kOthers, budget_.seed);
      if (!has_all) any_bounds_.push_back(bound_of_any(stages));
      if (has_all) all_of_.push_back(stages.per_rank);
    }
    for (std::vector<Rank>& ranks : placements) {
      const double needed = memory_of_one(stages, ranks);
      least_memory = std::min(least_memory, needed);
      const bool is_known =
          std::ranges::any_of(known_, [&](const auto& each) { return each == ranks; });
      if (is_known || (request_.memory_max && needed > *request_.memory_max)) continue;
      variants_.emplace_back(stages, placement, ranks);
      known_.push_back(std::move(ranks));
    }
  }

  Piece piece(Piece::Kind kind, std::size_t number, double effort) const {
    return {.kind = kind,
            .seed = seed_of_piece(budget_.seed, rounds_, number),
            .effort = effort,
            .best = rounds_ > 0 ? best().best().makespan : kStuck,
            .stop = budget_.stop};
  }

  // Chooses pieces of work on variants that may still become the fastest, the fastest ones most
  // often.  One piece is a proof for the variant with the lowest bound, which is the bound of all.
  std::vector<std::pair<std::size_t, Piece>> next_pieces() const {
    std::vector<std::size_t> open;
    for (std::size_t i = 0; i < variants_.size(); ++i) {
      if (variants_[i].bound().makespan < makespan() * (1.0 - kRounding)) open.push_back(i);
    }
    std::ranges::stable_sort(open, {}, [&](std::size_t i) { return variants_[i].best().makespan; });
    std::vector<std::pair<std::size_t, Piece>> pieces;
    if (open.empty()) return pieces;
    Random random(mix(budget_.seed) + static_cast<std::uint64_t>(rounds_));
    const auto effort = static_cast<double>(rounds_);
    // One glance at each variant after the first round: a bound that is proven early may close it.
    constexpr double kGlance = 0.02;
    for (std::size_t i = 0; rounds_ == 1 && i < variants_.size(); ++i) {
      const bool is_open = std::ranges::find(open, i) != open.end();
      if (is_open && variants_[i].can_prove()) {
        pieces.emplace_back(i, piece(Piece::Kind::Prove, kPieces + i, kGlance));
      }
    }
    const auto drawn = [&] {
      std::size_t which = 0;
      while (which + 1 < open.size() && random.chance(0.5)) ++which;
      return open[which];
    };
    std::size_t number = 0;
    const auto add = [&](std::size_t which, Piece::Kind kind) {
      if (kind == Piece::Kind::Prove && !variants_[which].can_prove()) kind = Piece::Kind::Repair;
      pieces.emplace_back(which, piece(kind, number++, effort));
    };
    add(drawn(), Piece::Kind::Prove);
    add(*std::ranges::min_element(open, {},
                                  [&](std::size_t i) { return variants_[i].bound().makespan; }),
        Piece::Kind::Prove);
    add(drawn(), Piece::Kind::Repair);
    add(drawn(), Piece::Kind::Tune);
    return pieces;
  }

  void run_pieces(const std::vector<std::pair<std::size_t, Piece>>& pieces) {
    std::vector<Work> work;
    for (const auto& [variant, each] : pieces) work.push_back({&variants_[variant], each});
    std::vector<Finding> findings = search::run_pieces(work);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      simulated_ += findings[i].simulated;
      variants_[pieces[i].first].learn(std::move(findings[i]));
    }
  }

  const Variant& best() const {
    return *std::ranges::min_element(
        variants_, {}, [](const Variant& variant) { return variant.best().makespan; });
  }
  double makespan() const { return best().best().makespan + request_.costs.optimizer; }

  // The bound of all that the request allows.  Where any placement is allowed, bounds of some
  // placements say little: only those count of which all were tried.
  LowerBound bound() const {
    LowerBound lowest{.makespan = std::numeric_limits<double>::infinity()};
    const auto lower = [&](const LowerBound& each) {
      if (each.makespan < lowest.makespan) lowest = each;
    };
    for (const Variant& variant : variants_) {
      if (variant.placement() != Placement::Any ||
          std::ranges::find(all_of_, variant.stages().per_rank) != all_of_.end()) {
        lower(variant.bound());
      }
    }
    for (const LowerBound& each : any_bounds_) lower(each);
    return lowest;
  }

  verify::VerifiedSchedule verified(const Variant& variant, const Order& order) const;
  Result result() const;

  const Request& request_;
  const Budget& budget_;
  std::deque<Variant> variants_;
  std::vector<std::vector<Rank>> known_;
  std::vector<LowerBound> any_bounds_;
  std::vector<std::int32_t> all_of_;  // Stages per rank whose placements are all searched.
  std::int64_t rounds_ = 0;
  std::int64_t simulated_ = 0;
};

verify::VerifiedSchedule Search::verified(const Variant& variant, const Order& order) const {
  const simulate::Costs& costs = variant.stages().costs;
  return with_whole_backwards(
      verify::VerifiedSchedule::from(
          variant.problem().schedule_of(order),
          {.memory_max = request_.memory_max, .activation = costs.activation, .keep = costs.keep}),
      costs);
}

Result Search::result() const {
  const Variant& variant = best();
  const simulate::Costs& costs = variant.stages().costs;
  auto schedule = verified(variant, variant.best().order);
  // Repairs pull halves apart.  Where a whole backward costs less, generators may have more of
  // them.
  if (costs.backward) {
    for (const Order& order : generated_orders(variant.problem())) {
      auto other = verified(variant, order);
      if (makespan_of(other, costs) < makespan_of(schedule, costs)) schedule = std::move(other);
    }
  }
  auto simulation = simulate::simulate(schedule, costs);
  return {.schedule = std::move(schedule),
          .costs = costs,
          .simulation = std::move(simulation),
          .stages_per_rank = variant.stages().per_rank,
          .placement = variant.placement(),
          .placed_bound = variant.bound(),
          .bound = bound(),
          .rounds = rounds_,
          .simulated = simulated_};
}

}  // namespace

double Result::gap() const {
  if (bound.makespan <= 0.0) return simulation.makespan > 0.0 ? kStuck : 0.0;
  const double gap = simulation.makespan / bound.makespan - 1.0;
  return gap < kRounding ? 0.0 : gap;
}

Result search(const Request& request, const Budget& budget) {
  check(request);
  return Search(request, budget).run();
}

}  // namespace penstock::search
