// The events of a run on rank 0: those that its directory has already, and those that come.
//
// run.h has one, and draws their marks.  Whether the directory's events are this run's is decided
// before any rank starts: cli/plan/run_log.h.  Knows no metrics.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "penstock/plan/measure/run_events.h"
#include "penstock/plan/render/loss_svg.h"
#include "penstock/runtime/run/run_files.h"

namespace penstock::run {

class EventLog {
 public:
  // Reads the events in `folder`.  `tell` hears why, where some cannot be read; then only the
  // others are marked.  `files` outlives this.
  EventLog(RunFiles& files, const std::string& folder,
           const std::function<void(const std::string&)>& tell);

  // Whether ranks of this run were ready in this folder before this start.
  bool goes_on() const { return goes_on_; }

  // Gives the event its time, and writes it.
  void add(measure::RunEvent event);

  render::LossMarks marks() const;

 private:
  RunFiles& files_;
  bool goes_on_ = false;
  std::vector<measure::RunEvent> events_;
};

}  // namespace penstock::run
