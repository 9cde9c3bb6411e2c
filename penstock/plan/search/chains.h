// The stages of a search, in chains, and the microbatches that pass them.
//
// A *chain* is the stages of the model, each on a rank, and the microbatches that pass them there.
// One replica is one chain; where ranks take over work of other replicas, each way through the
// ranks is one.  The stages of all chains have numbers of their own here, those of one chain side
// by side.  A stage's microbatches are those of its chain, from 0.  Knows no costs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/plan/schedule/homes.h"

namespace penstock::search {

struct Chain {
  std::vector<Rank> rank_of_stage;
  std::vector<std::int32_t> microbatches;  // Their numbers among those of all chains, rising.
};

// The most stages of all chains.
inline constexpr std::size_t kStagesMax = 0xFFFF;

class Chains {
 public:
  // REQUIRES: chains of as many stages, at most kStagesMax in all; each microbatch in one of them;
  // every rank in [0, ranks) has a stage.
  Chains(std::vector<Chain> chains, std::int32_t ranks);

  std::size_t count() const { return chains_.size(); }
  std::size_t ranks() const { return stages_of_.size(); }
  std::size_t stages() const { return rank_of_.size(); }
  std::size_t stages_per_chain() const { return stages_per_chain_; }
  std::size_t microbatches() const;  // Microbatches of all chains.
  std::size_t microbatches(std::size_t stage) const { return of(stage).microbatches.size(); }

  const Chain& of(std::size_t stage) const { return chains_[stage / stages_per_chain_]; }
  // The stage of the model that a chain's stage is.
  std::size_t in_chain(std::size_t stage) const { return stage % stages_per_chain_; }
  bool is_first(std::size_t stage) const { return in_chain(stage) == 0; }
  bool is_last(std::size_t stage) const { return in_chain(stage) + 1 == stages_per_chain_; }

  // A number in [0, cells()) that only this microbatch of this stage has.
  std::size_t cell(std::size_t stage, std::size_t microbatch) const {
    return first_cell_[stage] + microbatch;
  }
  std::size_t cells() const { return cells_; }
  // The number of a stage's microbatch among those of all chains.
  std::int32_t number_of(std::size_t stage, std::size_t microbatch) const {
    return of(stage).microbatches[microbatch];
  }

  std::size_t rank_of(std::size_t stage) const { return rank_of_[stage]; }
  const std::vector<std::uint16_t>& stages_of(std::size_t rank) const { return stages_of_[rank]; }
  // The stages of a rank, rising, by chain that has any there.
  const std::vector<std::vector<std::uint16_t>>& on(std::size_t rank) const { return on_[rank]; }
  // Microbatches of all stages of a rank together.
  std::size_t cells_of(std::size_t rank) const;

  schedule::Homes homes() const;  // Homes by the model's stage and the number of the microbatch.

 private:
  std::vector<Chain> chains_;
  std::size_t stages_per_chain_;
  std::size_t cells_ = 0;
  std::vector<std::size_t> first_cell_;  // First cell of each stage.
  std::vector<std::size_t> rank_of_;
  std::vector<std::vector<std::uint16_t>> stages_of_;
  std::vector<std::vector<std::vector<std::uint16_t>>> on_;
};

}  // namespace penstock::search
