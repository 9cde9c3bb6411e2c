#include "penstock/plan/schedule/homes.h"

#include <map>
#include <utility>

#include "penstock/core/check.h"

namespace penstock::schedule {
namespace {

std::vector<Rank> by_stage(const Schedule& schedule) {
  std::vector<Rank> homes(static_cast<std::size_t>(schedule.stages));
  for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
    for (const Action& action : schedule.programs[rank]) homes[action.stage.index()] = Rank(rank);
  }
  return homes;
}

// The homes of all stages, by microbatch, then by stage.
std::vector<std::vector<Rank>> by_microbatch(const Schedule& schedule) {
  std::vector<std::vector<Rank>> homes(
      static_cast<std::size_t>(schedule.microbatches),
      std::vector<Rank>(static_cast<std::size_t>(schedule.stages)));
  for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
    for (const Action& action : schedule.programs[rank]) {
      if (action.microbatch) homes[action.microbatch->index()][action.stage.index()] = Rank(rank);
    }
  }
  return homes;
}

}  // namespace

Homes::Homes(std::vector<Rank> of_stages)
    : stages_(of_stages.size()), of_ways_(std::move(of_stages)) {}

Homes::Homes(std::size_t stages, std::vector<Rank> of_ways, std::vector<std::uint32_t> way_of)
    : stages_(stages), of_ways_(std::move(of_ways)), way_of_(std::move(way_of)) {}

Homes::Homes(const Schedule& schedule) : stages_(static_cast<std::size_t>(schedule.stages)) {
  if (schedule.replicas == 1) {
    of_ways_ = by_stage(schedule);
    return;
  }
  std::map<std::vector<Rank>, std::uint32_t> known;
  for (const std::vector<Rank>& way : by_microbatch(schedule)) {
    const auto [found, is_new] = known.emplace(way, static_cast<std::uint32_t>(known.size()));
    if (is_new) of_ways_.insert(of_ways_.end(), way.begin(), way.end());
    way_of_.push_back(found->second);
  }
  if (known.size() == 1) way_of_.clear();
}

std::vector<std::vector<StageId>> Homes::stages_of_ranks(std::size_t ranks) const {
  std::vector<std::vector<StageId>> all(ranks);
  for (std::size_t stage = 0; stage < stages_; ++stage) {
    for (std::size_t way = 0; way < ways(); ++way) {
      std::vector<StageId>& of_rank = all[on_way(way, stage).index()];
      if (of_rank.empty() || of_rank.back() != StageId(stage)) of_rank.emplace_back(stage);
    }
  }
  return all;
}

const std::vector<Rank>& Homes::of_stages() const {
  PENSTOCK_CHECK(ways() <= 1, "stages have several homes: ", ways(), " ways");
  return of_ways_;
}

}  // namespace penstock::schedule
