#include "penstock/plan/lower/places.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

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

std::vector<mesh::Place> of_replicas(const schedule::Schedule& schedule,
                                     const std::vector<Stages>& stages_of) {
  std::vector<mesh::Place> places;
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

// The program of all ranks leaves nothing to other axes.
void check_axes(const schedule::Schedule& schedule, const mesh::Shape& shape) {
  const std::vector<mesh::Axis> of_pipe = mesh::axes_of(mesh::Role::Pipe);
  for (const mesh::Axis axis : mesh::kEveryAxis) {
    if (shape[axis] == 1 || std::ranges::count(of_pipe, axis) > 0) continue;
    throw ScheduleError(str(schedule::title(schedule), ": has the programs of all ranks; mesh.",
                            mesh::row_of(axis).name, " ", shape[axis], " must be 1"));
  }
}

// Absent: the mesh says who shares what.
std::optional<std::vector<mesh::Place>> places_of_program(const verify::VerifiedSchedule& verified,
                                                          const mesh::Mesh& mesh) {
  const schedule::Schedule& schedule = verified.schedule();
  if (programs_of(verified) == mesh::Programs::Alike) return {};
  check_axes(schedule, mesh.shape());
  return of_replicas(schedule, verified.facts().homes.stages_of_ranks(schedule.programs.size()));
}

}  // namespace

mesh::Groups groups_of(const verify::VerifiedSchedule& schedule, const mesh::Mesh& mesh,
                       Rank rank) {
  auto places = places_of_program(schedule, mesh);
  return places ? mesh::groups_of_program(std::move(*places), rank) : mesh::groups_of(mesh, rank);
}

std::vector<mesh::Place> places_of(const verify::VerifiedSchedule& schedule,
                                   const mesh::Mesh& mesh) {
  return groups_of(schedule, mesh, Rank(0)).places;
}

mesh::Programs programs_of(const verify::VerifiedSchedule& schedule) {
  return schedule.schedule().replicas == 1 ? mesh::Programs::Alike : mesh::Programs::OfTheirOwn;
}

std::vector<Share> shares_of(const verify::VerifiedSchedule& schedule, const mesh::Mesh& mesh) {
  const auto ranks = static_cast<std::size_t>(schedule.schedule().ranks());
  const auto places = places_of_program(schedule, mesh);
  if (!places) return {ranks, {.ranks = mesh.shape().size(mesh::Role::SameParameters)}};
  std::vector<Share> shares(ranks);
  for (const mesh::Place& place : *places) {
    for (std::size_t i = 0; i < place.size(); ++i) {
      shares[place[i].index()] = {.ranks = static_cast<std::int32_t>(place.size()),
                                  .place = static_cast<std::int32_t>(i)};
    }
  }
  return shares;
}

}  // namespace penstock::lower
