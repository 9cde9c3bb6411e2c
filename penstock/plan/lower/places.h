// Who has what in common in a run: the places of its pipe, and the groups of each rank.
//
// Lowering checks them, memory is told by them, and a rank's model has the groups that they say. In
// a schedule of one replica they are the mesh's.  In one of several replicas (schedule.h) they
// follow from the stages that each rank has, and places may have different numbers of ranks.
#pragma once
#include <cstdint>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/core/mesh/groups.h"
#include "penstock/mesh/mesh.h"
#include "penstock/verify/verify.h"

namespace penstock::lower {

// REQUIRES: the schedule's ranks are the mesh's pipe axis; here and below.
// Throws: ScheduleError for a schedule of several replicas in which ranks share some of their
// stages and not all, or one sums what it does not compute, or that is to run with other axes than
// the pipe; here and below.
mesh::Groups groups_of(const verify::VerifiedSchedule& schedule, const mesh::Mesh& mesh, Rank rank);

// The places of all ranks, in the order of their first ones.
std::vector<mesh::Place> places_of(const verify::VerifiedSchedule& schedule,
                                   const mesh::Mesh& mesh);

// Whether ranks with the same parameters run the same program.
mesh::Programs programs_of(const verify::VerifiedSchedule& schedule);

// How many ranks have the same parameters as one, and which of them it is.
struct Share {
  std::int32_t ranks = 1;
  std::int32_t place = 0;
};
// Shares by the schedule's rank; those of a mesh are of its first replica.
std::vector<Share> shares_of(const verify::VerifiedSchedule& schedule, const mesh::Mesh& mesh);

}  // namespace penstock::lower
