// Proves that a schedule can run, before anything does.
//
// verify() replays the programs under the rules that the executor will follow and returns every
// objection; VerifiedSchedule::from() throws them.  Only a VerifiedSchedule can be lowered or
// simulated, so nothing unverified runs, by type.  Knows no devices and no time.
//
// The rules.  Every stage lives on one rank, or, of several replicas, on up to so many, of which
// one has all that the stage does for a microbatch.  It runs each microbatch's F once and, when
// training, either its B or its I and its W, once.  F(s, m) needs F(s-1, m); B(s, m) and I(s, m)
// need F(s, m) and the B or I of (s+1, m); W(s, m) needs I(s, m).  An overlapped pair is an F and
// the B right behind it, of another microbatch: it starts when both can.  A lowered program also
// needs every value that crosses ranks sent once after it is made, and received once before it is
// used; a compute action waits for its RECV, and Options say how messages meet.  REDUCE_GRAD comes
// after the stage's last B or W, that of one microbatch after its B or W; a stage has one of all
// microbatches (of a rank, where several have the stage) or one of each.  On a rank with an
// UNSHARD, a stage computes only between its UNSHARD and its RESHARD.  No rank is without a stage.
// Cost: linear in the number of actions.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/ids.h"
#include "penstock/plan/schedule/homes.h"
#include "penstock/plan/verify/diagnostic.h"
#include "penstock/plan/verify/options.h"
#include "penstock/schedule/schedule.h"

namespace penstock::verify {

// What the replay found out about a schedule without objections.
struct Facts {
  schedule::Homes homes;
  // Largest number of (stage, microbatch) activations alive at once, by rank.  An activation lives
  // from its F to its B or W; a forward-only schedule keeps none.
  std::vector<std::int32_t> peak_activations;
};

struct Verdict {
  // All of them: those of the whole schedule, then in program order.  Empty: it verifies.
  std::vector<Diagnostic> diagnostics;
  Facts facts;  // Meaningful only when there are no diagnostics.
};

// Throws: ConfigError when the numbers in `options` do not fit the schedule.
Verdict verify(const schedule::Schedule& schedule, const Options& options = {});

// A schedule that does not verify; the text has the first 20 diagnostics and counts the others.
class Refusal : public ScheduleError {
 public:
  Refusal(const schedule::Schedule& schedule, std::vector<Diagnostic> diagnostics);
  const std::vector<Diagnostic>& diagnostics() const { return diagnostics_; }

 private:
  std::vector<Diagnostic> diagnostics_;
};

class VerifiedSchedule {
 public:
  // Throws: Refusal; ConfigError as verify().
  static VerifiedSchedule from(schedule::Schedule schedule, const Options& options = {});

  const schedule::Schedule& schedule() const { return schedule_; }
  const Options& options() const { return options_; }  // What it was verified under.
  const Facts& facts() const { return facts_; }
  // REQUIRES: a schedule of one replica.
  Rank rank_of(StageId stage) const { return facts_.homes.of_stages()[stage.index()]; }

 private:
  VerifiedSchedule(schedule::Schedule schedule, Options options, Facts facts);
  schedule::Schedule schedule_;
  Options options_;
  Facts facts_;
};

}  // namespace penstock::verify
