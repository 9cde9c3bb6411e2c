#include "penstock/lower/places.h"

#include <algorithm>
#include <map>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::lower {
namespace {

using schedule::Action;

using Stages = std::vector<StageId>;

// A sum of what a rank does not compute belongs to no place.
void check_computes(const schedule::Schedule& schedule, Rank rank, const Stages& stages) {
  for (const Action& action : schedule.programs[rank.index()]) {
    if (std::ranges::binary_search(stages, action.stage)) continue;
    throw ScheduleError(str(schedule::title(schedule), ": rank ", rank, " has ", action,
                            " and computes nothing of stage ", action.stage));
  }
}

std::vector<std::vector<Rank>> of_replicas(const schedule::Schedule& schedule,
                                           const std::vector<Stages>& stages_of) {
  std::vector<std::vector<Rank>> places;
  std::map<StageId, std::size_t> place_of;
  for (std::int32_t r = 0; r < schedule.ranks(); ++r) {
    const Stages& stages = stages_of[Rank(r).index()];
    check_computes(schedule, Rank(r), stages);
    const auto known = place_of.find(stages.front());
    const std::size_t place = known == place_of.end() ? places.size() : known->second;
    if (place == places.size()) places.emplace_back();
    places[place].emplace_back(r);
    for (const StageId stage : stages) {
      const Rank other = places[place_of.emplace(stage, place).first->second].front();
      const Stages& theirs = stages_of[other.index()];
      if (stages == theirs) continue;
      throw ScheduleError(str(schedule::title(schedule), ": ranks ", other, " and ", r,
                              " share stage ", stage, ", and have stages ", join(theirs, " "),
                              " and ", join(stages, " "),
                              ": ranks that share a stage have to share all"));
    }
  }
  return places;
}

}  // namespace

std::vector<std::vector<Rank>> places_of(const verify::VerifiedSchedule& verified,
                                         const mesh::Mesh& mesh) {
  const schedule::Schedule& schedule = verified.schedule();
  if (schedule.replicas == 1) {
    std::vector<std::vector<Rank>> places;
    for (std::int32_t pipe = 0; pipe < mesh.shape().pipe; ++pipe) {
      places.push_back(mesh.data_group(mesh.rank({.pipe = pipe, .data = 0})));
    }
    return places;
  }
  if (mesh.shape().data > 1) {
    throw ScheduleError(str(schedule::title(schedule),
                            ": has the programs of all ranks; mesh.data ", mesh.shape().data,
                            " must be 1"));
  }
  return of_replicas(schedule, verified.facts().homes.stages_of_ranks(schedule.programs.size()));
}

}  // namespace penstock::lower
