#include "penstock/rank/progress_report.h"

#include <iterator>

#include "penstock/lower/plan.h"
#include "penstock/schedule/action.h"

namespace penstock::rank {

launch::ProgressReport report_of(const execute::Progress& progress) {
  launch::ProgressReport report{
      .counter = static_cast<std::uint64_t>(progress.counter.load(std::memory_order_relaxed)),
      .phase = progress.phase.load(std::memory_order_relaxed),
      .waiting = progress.waiting.load(std::memory_order_relaxed),
      .uses_files = progress.uses_files.load(std::memory_order_relaxed)};
  const std::int64_t step = progress.step.load(std::memory_order_relaxed);
  if (step > 0) report.step = step;
  const lower::Plan* plan = progress.plan.load(std::memory_order_acquire);
  const auto index = progress.instruction.load(std::memory_order_relaxed);
  const char* doing = progress.doing.load(std::memory_order_relaxed);
  if (plan != nullptr && index >= 0 && index < std::ssize(plan->instructions)) {
    const auto& instruction = plan->instructions[static_cast<std::size_t>(index)];
    report.doing = schedule::to_string(instruction.action);
    if (report.waiting) report.waiting_for = instruction.peer;
  } else if (doing != nullptr) {
    (report.waiting ? report.doing : report.phase) = doing;
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
