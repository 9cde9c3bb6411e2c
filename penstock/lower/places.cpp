#include "penstock/lower/places.h"

#include <algorithm>
#include <map>
#include <set>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::lower {
namespace {

using schedule::Action;
using schedule::Program;

std::vector<StageId> stages_of(const Program& program) {
  std::set<StageId> stages;
  for (const Action& action : program) {
    if (schedule::is_compute(action.op)) stages.insert(action.stage);
  }
  return {stages.begin(), stages.end()};
}

// A sum of what a rank does not compute belongs to no place.
void check_computes(const schedule::Schedule& schedule, std::int32_t rank) {
  const Program& program = schedule.programs[Rank(rank).index()];
  const std::vector<StageId> stages = stages_of(program);
  for (const Action& action : program) {
    if (std::ranges::binary_search(stages, action.stage)) continue;
    throw ScheduleError(str(schedule::title(schedule), ": rank ", rank, " has ", action,
                            " and computes nothing of stage ", action.stage));
  }
}

std::vector<std::vector<Rank>> of_replicas(const schedule::Schedule& schedule) {
  std::vector<std::vector<Rank>> places;
  std::map<StageId, std::size_t> place_of;
  for (std::int32_t r = 0; r < schedule.ranks(); ++r) {
    check_computes(schedule, r);
    const std::vector<StageId> stages = stages_of(schedule.programs[Rank(r).index()]);
    const auto known = place_of.find(stages.front());
    const std::size_t place = known == place_of.end() ? places.size() : known->second;
    if (place == places.size()) places.emplace_back();
    places[place].emplace_back(r);
    for (const StageId stage : stages) {
      const Rank other = places[place_of.emplace(stage, place).first->second].front();
      const std::vector<StageId> theirs = stages_of(schedule.programs[other.index()]);
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
  return of_replicas(schedule);
}

}  // namespace penstock::lower
