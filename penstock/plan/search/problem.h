// What a search is to schedule: stages on ranks, microbatches, costs, and what a rank may hold.
//
// search() makes one per placement; all parts of the search read it.  Tables instead of formulas,
// because each is read some million times a second.
//
// The microbatches of a stage keep their order in every schedule of a search: a rank's order then
// says only which stage does which kind of action next.  Where microbatches cost the same, no
// schedule is lost by that: sorting the actions of each stage delays none of them.
// Units: those of simulate::Costs.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/plan/search/chains.h"
#include "penstock/plan/search/joined.h"
#include "penstock/plan/simulate/costs.h"
#include "penstock/plan/simulate/links.h"
#include "penstock/plan/verify/hops.h"
#include "penstock/schedule/schedule.h"

namespace penstock::search {

// The turn that gets the value which an F or an I makes.
struct Handover {
  bool exists = false;  // The last stage's F and the first one's I make none.
  SearchStep taker;     // Nothing else is waited for between ranks.
  // The link, if it carries one message at a time.
  std::optional<std::uint32_t> link = {};
};

class Problem {
 public:
  // REQUIRES: costs that fit; every rank in [0, ranks) has a stage.
  Problem(std::vector<Rank> rank_of_stage, std::int32_t ranks, std::int32_t microbatches,
          const simulate::Costs& costs, std::optional<double> memory_max);
  // The same with a limit for each rank.
  Problem(std::vector<Rank> rank_of_stage, std::int32_t ranks, std::int32_t microbatches,
          const simulate::Costs& costs, std::vector<double> memory_of_ranks);
  // REQUIRES: costs that fit.
  Problem(std::vector<Chain> chains, std::int32_t ranks, const simulate::Costs& costs,
          std::optional<double> memory_max);

  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  const Chains& chains() const { return chains_; }
  std::size_t ranks() const { return chains_.ranks(); }
  std::size_t stages() const { return chains_.stages(); }
  std::size_t microbatches() const { return chains_.microbatches(); }
  std::size_t links() const { return links_; }  // Pairs of ranks with messages.
  // Turns of all ranks together.
  std::size_t turns() const { return kKinds * chains_.cells(); }
  const std::vector<std::uint16_t>& stages_of(std::size_t rank) const {
    return chains_.stages_of(rank);
  }

  double time(SearchStep turn, std::size_t microbatch) const {
    return time_[static_cast<std::size_t>(turn.kind)][chains_.cell(turn.stage, microbatch)];
  }
  const Joined& joined() const { return joined_; }

  const Handover& handover(SearchStep turn) const {
    return handover_[static_cast<std::size_t>(turn.kind)][turn.stage];
  }
  // Time from the end of the turn until what it makes is there, on a link that is free.
  double transit(SearchStep turn, std::size_t microbatch) const {
    return transit_[static_cast<std::size_t>(turn.kind)][chains_.cell(turn.stage, microbatch)];
  }
  // How long that occupies the link.
  double transfer(SearchStep turn, std::size_t microbatch) const {
    return transfer_[static_cast<std::size_t>(turn.kind)][chains_.cell(turn.stage, microbatch)];
  }

  // What the activation takes of a rank's memory from the start of F, and what of it I gives back.
  double size(std::size_t stage, std::size_t microbatch) const {
    return size_[chains_.cell(stage, microbatch)];
  }
  double keep() const { return costs_.keep; }
  double memory_max(std::size_t rank) const { return memory_max_[rank]; }  // Infinite: no limit.
  // Largest of any rank.
  double memory_max() const { return *std::ranges::max_element(memory_max_); }

  const simulate::Costs& costs() const { return costs_; }

  // A schedule with split backwards, whole where their halves are joined.
  schedule::Schedule schedule_of(const Order& order) const;
  // The order of a schedule, whose B become I and W.  Absent: it has its stages elsewhere, or a
  // stage takes its microbatches in another order.
  // REQUIRES: `schedule` is a compute order that trains, of these sizes; one chain.
  std::optional<Order> order_of(const schedule::Schedule& schedule) const;

 private:
  void fill_times();
  void fill_handovers();
  void fill_handover(std::size_t stage, Kind kind, const verify::Hops& hops,
                     const simulate::Links& links);

  simulate::Costs costs_;
  Chains chains_;
  Joined joined_;
  std::array<std::vector<double>, kKinds> time_;
  std::array<std::vector<Handover>, kKinds> handover_;
  std::array<std::vector<double>, 2> transit_;
  std::array<std::vector<double>, 2> transfer_;
  std::vector<double> size_;
  std::vector<double> memory_max_;  // Limits by rank.
  std::size_t links_ = 0;
};

}  // namespace penstock::search
