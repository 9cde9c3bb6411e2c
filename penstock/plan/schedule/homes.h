// The rank that runs a stage: one for each stage, or, where ranks of several replicas share the
// work, one for each stage and microbatch.
//
// The passes that place messages read it, and all that verify and simulate: a value crosses ranks
// where two stages of its microbatch have different homes.  Knows no order.
//
// A *way* is the homes of all stages for one microbatch.  Microbatches of one replica take one way;
// those of a replica that lost a rank take others.  An ordinary schedule has one way.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "penstock/schedule/schedule.h"

namespace penstock::schedule {

class Homes {
 public:
  Homes() = default;
  // Takes ranks by stage: every microbatch takes this way.
  Homes(std::vector<Rank> of_stages);  // NOLINT(google-explicit-constructor): the usual case.
  // Takes ranks by way, then by stage; and the way of each microbatch.
  Homes(std::size_t stages, std::vector<Rank> of_ways, std::vector<std::uint32_t> way_of);
  // Finds the ranks where the programs have their actions; a stage without any is on rank 0.
  // REQUIRES: stages and microbatches in range.
  explicit Homes(const Schedule& schedule);

  std::size_t stages() const { return stages_; }
  std::size_t ways() const { return stages_ == 0 ? 0 : of_ways_.size() / stages_; }
  std::size_t way_of(std::size_t microbatch) const {
    return way_of_.empty() ? 0 : way_of_[microbatch];
  }
  Rank on_way(std::size_t way, std::size_t stage) const { return of_ways_[way * stages_ + stage]; }
  Rank of(StageId stage, Microbatch microbatch) const {
    return on_way(way_of(microbatch.index()), stage.index());
  }
  // REQUIRES: a microbatch, where there is more than one way.
  Rank of(const Action& action) const {
    return on_way(way_of_.empty() ? 0 : way_of_[action.microbatch->index()], action.stage.index());
  }

  // The stages that each rank has for any microbatch, rising.
  // REQUIRES: no home is beyond so many ranks.
  std::vector<std::vector<StageId>> stages_of_ranks(std::size_t ranks) const;

  // Ranks by stage.  REQUIRES: one way.
  const std::vector<Rank>& of_stages() const;

  friend bool operator==(const Homes&, const Homes&) = default;

 private:
  std::size_t stages_ = 0;
  std::vector<Rank> of_ways_;          // Ranks by way, then by stage.
  std::vector<std::uint32_t> way_of_;  // Ways by microbatch; empty: there is one way.
};

}  // namespace penstock::schedule
