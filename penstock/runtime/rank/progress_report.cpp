#include "penstock/runtime/rank/progress_report.h"

namespace penstock::rank {

launch::ProgressReport report_of(const execute::Position& position) {
  launch::ProgressReport report{.counter = static_cast<std::uint64_t>(position.counter),
                                .phase = position.phase,
                                .doing = position.action,
                                .waiting = position.waiting,
                                .uses_files = position.uses_files};
  if (position.step > 0) report.step = position.step;
  if (report.waiting && !position.action.empty()) report.waiting_for = position.peer;
  if (position.action.empty() && position.doing != nullptr) {
    (report.waiting ? report.doing : report.phase) = position.doing;
  }
  return report;
}

void Patience::measure(launch::ProgressReport& report) {
  using std::chrono::milliseconds;
  const auto now = std::chrono::steady_clock::now();
  if (!report.waiting || report.counter != counter_) since_ = now;
  counter_ = report.counter;
  report.waiting_ms = std::chrono::duration_cast<milliseconds>(now - since_).count();
}

}  // namespace penstock::rank
