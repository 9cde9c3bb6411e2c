#include "penstock/plan/search/chains.h"

#include <utility>

namespace penstock::search {

Chains::Chains(std::vector<Chain> chains, std::int32_t ranks)
    : chains_(std::move(chains)),
      stages_per_chain_(chains_.front().rank_of_stage.size()),
      stages_of_(static_cast<std::size_t>(ranks)),
      on_(stages_of_.size()) {
  for (const Chain& chain : chains_) {
    std::vector<std::vector<std::uint16_t>> on(stages_of_.size());
    for (const Rank rank : chain.rank_of_stage) {
      const auto stage = static_cast<std::uint16_t>(rank_of_.size());
      rank_of_.push_back(rank.index());
      stages_of_[rank.index()].push_back(stage);
      on[rank.index()].push_back(stage);
      first_cell_.push_back(cells_);
      cells_ += chain.microbatches.size();
    }
    for (std::size_t rank = 0; rank < on_.size(); ++rank) {
      if (!on[rank].empty()) on_[rank].push_back(std::move(on[rank]));
    }
  }
}

std::size_t Chains::cells_of(std::size_t rank) const {
  std::size_t cells = 0;
  for (const std::uint16_t stage : stages_of_[rank]) cells += microbatches(stage);
  return cells;
}

std::size_t Chains::microbatches() const {
  std::size_t count = 0;
  for (const Chain& chain : chains_) count += chain.microbatches.size();
  return count;
}

schedule::Homes Chains::homes() const {
  if (chains_.size() == 1) return chains_.front().rank_of_stage;
  std::vector<Rank> of_ways;
  std::vector<std::uint32_t> way_of(microbatches());
  for (std::uint32_t way = 0; way < chains_.size(); ++way) {
    const Chain& chain = chains_[way];
    of_ways.insert(of_ways.end(), chain.rank_of_stage.begin(), chain.rank_of_stage.end());
    for (const std::int32_t number : chain.microbatches) {
      way_of[static_cast<std::size_t>(number)] = way;
    }
  }
  return {stages_per_chain_, std::move(of_ways), std::move(way_of)};
}

}  // namespace penstock::search
