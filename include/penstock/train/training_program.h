// The program that a Trainer trains by, and how it changes between two steps.
//
// A Trainer has one and runs its executor; run/ changes it when costs say so, and a checkpoint has
// it once it has changed.  Knows no costs.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/plan/adapt/objection.h"
#include "penstock/runtime/execute/executor.h"
#include "penstock/runtime/execute/progress.h"
#include "penstock/runtime/train/rank_model.h"

namespace penstock::train {

class TrainingProgram {
 public:
  // Trains by the program of `layout`, lowered.  All that is a reference outlives it.
  // `prove` proves of another one what else its ranks do, or throws.
  TrainingProgram(lower::Plan plan, Layout& layout, RankModel& rank_model, GradientSums sums,
                  comm::Communicator& communicator, execute::Progress& progress,
                  std::function<void(const verify::VerifiedSchedule&)> prove);

  execute::Executor& executor() { return *executor_; }
  // Runs of one name read parameters alike.
  const std::string& name() const { return name_; }

  // Makes the ranks run `program`, which has its messages, from the next step on, in the place of
  // the layout's.  Not a bit of what is trained changes by it.  What executor() had returned before
  // is gone.  Collective over all ranks, between steps.
  // Throws, on every rank: DifferenceError when they were given different programs; ScheduleError
  // for one that does not verify, to which there is an objection (adapt/objection.h), or whose
  // messages and exchanges within layers cannot run together.  The program is then the one before.
  void change(schedule::Schedule program);
  std::int64_t changes() const { return changes_; }
  // What the run asks of its programs; the room is that of the first one.
  const adapt::Terms& terms() const { return terms_; }

  // The program, as a text, of the run that saved the loaded checkpoint; empty: it had changed
  // none.
  const std::string& saved() const { return saved_; }
  void set_saved(std::string text) { saved_ = std::move(text); }

 private:
  Layout& layout_;
  RankModel& rank_model_;
  adapt::Terms terms_;
  comm::Communicator& communicator_;
  execute::Progress& progress_;
  std::unique_ptr<execute::Executor> executor_;
  // Kept, because another thread may still read where this rank stood in them.
  std::vector<std::shared_ptr<const lower::Plan>> earlier_plans_;
  std::string name_ = "train";
  std::int64_t changes_ = 0;
  std::string saved_;
  std::function<void(const verify::VerifiedSchedule&)> prove_;
};

// What this rank does in one step of a schedule that the layout's could be.
lower::Plan lower_here(const Layout& layout, const verify::VerifiedSchedule& schedule,
                       const comm::Communicator& communicator);

}  // namespace penstock::train
