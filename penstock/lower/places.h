// The places of a pipe: the ranks that have the same stages, whose gradients they sum.
//
// Lowering checks them, and a rank's model has the groups that they say.  In a schedule of one
// replica a place is a pipe coordinate of the mesh, with all its data ranks.  In one of several
// replicas (schedule.h), places may have different numbers of ranks.
#pragma once
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/mesh/mesh.h"
#include "penstock/verify/verify.h"

namespace penstock::lower {

// A list of global ranks for each place, rising; the places in the order of their first ranks.
// REQUIRES: the schedule's ranks are the mesh's pipe axis.
// Throws: ScheduleError for a schedule of several replicas in which ranks share some of their
// stages and not all, or one sums what it does not compute, or that is to run with data ranks
// besides.
std::vector<std::vector<Rank>> places_of(const verify::VerifiedSchedule& schedule,
                                         const mesh::Mesh& mesh);

}  // namespace penstock::lower
