// The saves of a run's checkpoints, what it goes on from, and what its user hears of both.
//
// run.h has one on every rank.  How a checkpoint is saved and read: saving/checkpoints.h; what a
// user is promised: docs/checkpoints.md.  Knows no data and no metrics.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "penstock/comm/communicator.h"
#include "penstock/config/config.h"
#include "penstock/plan/measure/run_events.h"
#include "penstock/runtime/execute/progress.h"
#include "penstock/runtime/train/facts.h"
#include "penstock/saving/checkpoints.h"
#include "penstock/train/trainer.h"

namespace penstock::run {

class RunCheckpoints {
 public:
  // All that is a reference outlives it.  `facts` are what the run is made of, besides its layout;
  // `tell` hears lines for the user, on rank 0; `note` hears, on every rank, what was saved or not.
  // Throws: CheckpointError for a model that cannot be saved, if it is to be.
  RunCheckpoints(const config::Config& config, train::Trainer& trainer,
                 comm::Communicator& communicator, execute::Progress& progress,
                 const train::Facts& facts, std::function<void(const std::string&)> tell,
                 std::function<void(measure::RunEvent)> note);

  // What else the run goes on with: `state` is asked at each save, on rank 0.
  void keep(std::function<checkpoint::Texts()> state) { state_ = std::move(state); }
  // The last step of the learning rate's course, where that ends with the run.
  std::int64_t schedule_steps() const { return schedule_steps_; }

  // All that follow are collective over all ranks.

  enum class GoesOn { Training, Evaluating };
  // Goes on from what the configuration says, if it does.  Who evaluates hears of no learning rate,
  // and of no other data.  Throws: as saving::Checkpoints.
  void resume(GoesOn goes_on = GoesOn::Training);
  // What it goes on with; absent where it begins at step 1.
  const std::optional<saving::Resumed>& resumed() const { return resumed_; }
  // Whether that is a checkpoint of this run's own directory.
  bool goes_on_here() const { return goes_on_here_; }

  // Asks for a save after the step that comes, on rank 0, where enough minutes have passed.
  void ask();
  // Saves after a step when the configuration says so, and after the last one, which it waits for.
  // A save that fails does not keep the next one from being tried.
  // Throws: CheckpointError for the last one, and for any, if the configuration says so.
  void after(const train::StepReport& report, bool is_last);
  // What is being written is waited for: a run that fails in the same way on all ranks keeps it.
  void finish();

  // "; to go on: --run runs/a --resume auto", of a run whose last step is saved; else nothing.
  std::string how_to_go_on() const;

 private:
  bool saves() const { return options_.saves(); }
  void tell_resumed(const saving::Resumed& resumed, GoesOn goes_on) const;
  void settle_schedule(const saving::Resumed& resumed);
  void tell_rate_that_jumps(const saving::Resumed& resumed, std::int64_t before) const;
  void begin_save();
  template <class Action>
  void noting_failure(const Action& action);
  template <class Action>
  void or_warn(const Action& action);

  const config::Config& config_;
  const config::CheckpointConfig& options_;
  const std::string& run_directory_;
  std::string directory_;
  checkpoint::Texts facts_;
  std::function<void(const std::string&)> tell_;
  std::function<void(measure::RunEvent)> note_;
  std::function<checkpoint::Texts()> state_;
  std::int64_t schedule_steps_;
  train::Trainer& trainer_;
  comm::Communicator& communicator_;
  saving::Checkpoints checkpoints_;
  std::optional<saving::Resumed> resumed_;
  bool goes_on_here_ = false;
  std::int64_t begun_step_ = 0;  // Step of the last save.
  bool has_last_step_ = false;
  std::chrono::steady_clock::time_point last_save_ = std::chrono::steady_clock::now();
};

}  // namespace penstock::run
