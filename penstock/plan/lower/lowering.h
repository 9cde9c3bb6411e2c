// Lowers a verified schedule for one rank after another.
//
// lower() is this for a single rank.  Whoever wants the plans of many ranks makes one Lowering: it
// looks up once what the plans share.  So all plans together cost time linear in the number of
// actions.  A plan is made when it is asked for and not kept.
// Thread safety: plan() may be called by several threads at once.
#pragma once
#include <memory>

#include "penstock/lower/plan.h"

namespace penstock::lower {

class Lowering {
 public:
  // REQUIRES: as lower(); the schedule and the mesh outlive this.
  // Throws: ScheduleError as lower().
  Lowering(const verify::VerifiedSchedule& schedule, const partition::Partition& partition,
           const mesh::Mesh& mesh);
  ~Lowering();

  // Law: Lowering(s, p, m).plan(r) is lower(s, p, m, r).
  Plan plan(Rank rank) const;

 private:
  struct Shared;
  std::unique_ptr<const Shared> shared_;
};

}  // namespace penstock::lower
