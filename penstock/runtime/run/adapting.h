// Measures what steps cost while a run trains, tells when that changes, and lets the ranks change
// to another program, if the configuration says so.
//
// run.h has one on every rank.  Each rank measures its own computations; every
// schedule.window_steps all ranks share their numbers, so they decide alike (adapt/adaptation.h).
// Rank 0 looks for a program and hands it to the others as a text; a Trainer changes to it on all
// ranks or on none. Ranks that compute on a device are not measured: the device is still at work
// when an instruction is over.
#pragma once
#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "penstock/comm/communicator.h"
#include "penstock/config/config.h"
#include "penstock/plan/adapt/adaptation.h"
#include "penstock/plan/adapt/proposal.h"
#include "penstock/plan/adapt/window.h"
#include "penstock/plan/measure/run_events.h"
#include "penstock/runtime/execute/progress.h"
#include "penstock/train/trainer.h"

namespace penstock::run {

class Adapting {
 public:
  // The one who hears of it, on rank 0.
  struct Listeners {
    std::function<void(const std::string&)> tell;
    std::function<void(measure::RunEvent)> note;
    std::function<void(const std::string& name, std::string content)> write;  // A file.
  };

  // All that is a reference outlives it.
  // Throws: ConfigError for a run that is to change its program, and cannot.
  Adapting(const config::Config& config, c10::Device device, train::Trainer& trainer,
           comm::Communicator& communicator, execute::Progress& progress, Listeners listeners);

  // Goes on with the program of the checkpoint that the run was resumed from, if it had changed and
  // fits.  Collective.
  void resume();

  // Enclose a step whose events nobody else records. after() is collective where a window ends.
  void before();
  void after(std::int64_t step);

  // The number of the program by which the next step runs, from 1; absent where it never changes.
  std::optional<std::int64_t> program() const;

 private:
  bool is_root() const { return communicator_.rank().value == 0; }
  void begin_window();
  adapt::WindowCosts share();
  void conclude(const adapt::WindowCosts& window);
  void judge(const adapt::Judgement& judged, std::int64_t step);
  adapt::Proposal search() const;
  std::string plan_of_root(std::optional<adapt::Proposal>& proposal);
  void change(std::int64_t step);
  void announce(const adapt::Proposal& proposal, std::int64_t step);
  void tell(const measure::RunEvent& event);

  const config::ScheduleConfig& config_;
  train::Trainer& trainer_;
  comm::Communicator& communicator_;
  execute::Progress& progress_;
  Listeners listeners_;
  std::chrono::duration<double> patience_;  // Time for a search: the other ranks wait for it.
  bool measures_ = false;
  bool adapts_ = false;
  std::optional<std::string> no_plans_;  // Why nothing can be proposed.
  adapt::Adaptation adaptation_;
  std::optional<adapt::Window> window_;
  bool is_recording_ = false;
  bool is_first_ = true;  // The next step pays for what is new.
  std::int64_t plans_ = 0;
  schedule::Schedule program_before_;  // While a new one is not judged yet.
};

}  // namespace penstock::run
