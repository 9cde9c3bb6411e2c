#include "penstock/runtime/run/step_ledger.h"

#include <sys/resource.h>

#include <algorithm>

#include "penstock/core/text.h"
#include "penstock/runtime/execute/progress.h"

namespace penstock::run {
namespace {

using execute::now_ns;
using probe::Interval;
using probe::OperatorKind;

constexpr double kNanosecond = 1e-9;

std::int64_t faults_of_process() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// The time that intervals cover together.
std::int64_t covered_ns(std::vector<Interval> intervals) {
  std::ranges::sort(intervals, {}, &Interval::start_ns);
  std::int64_t covered = 0, until = 0;
  for (const Interval& each : intervals) {
    covered += std::max<std::int64_t>(0, each.end_ns - std::max(each.start_ns, until));
    until = std::max(until, each.end_ns);
  }
  return covered;
}

std::vector<Interval> together(std::vector<Interval> some, const std::vector<Interval>& more) {
  some.insert(some.end(), more.begin(), more.end());
  return some;
}

// While it lives, messages are noted.
class Notes {
 public:
  explicit Notes(probe::MessageTimes& times) : times_(times) {
    times_ = {};
    times_.is_noted = true;
  }
  ~Notes() { times_.is_noted = false; }
  Notes(const Notes&) = delete;
  Notes& operator=(const Notes&) = delete;

 private:
  probe::MessageTimes& times_;
};

// Sums of all operators of a kind, in one step.
struct OfKind {
  double seconds = 0;
  double faults = 0;
  std::optional<double> at_best_s;
};

OfKind of_kind(const StepLedger& ledger, OperatorKind kind) {
  const auto steps = static_cast<double>(ledger.steps);
  OfKind all;
  for (const auto& [op, cost] : ledger.operators.costs) {
    if (op.kind != kind) continue;
    all.seconds += kNanosecond * static_cast<double>(cost.ns) / steps;
    all.faults += static_cast<double>(cost.faults) / steps;
    if (const auto best = at_best(op, cost, ledger.machine)) {
      all.at_best_s = all.at_best_s.value_or(0.0) + *best / steps;
    }
  }
  all.seconds -= all.faults * ledger.machine.fault_s;
  return all;
}

}  // namespace

std::optional<double> at_best(const probe::Operator& op, const probe::OperatorCost& cost,
                              const probe::MachineRates& machine) {
  switch (op.kind) {
    case OperatorKind::Product:
    case OperatorKind::Attention:
      return cost.operations / machine.product_peak;
    case OperatorKind::Pass: {
      double seconds = 0;
      for (const auto& [size, calls] : cost.by_size) {
        const auto& [count, bytes] = calls;
        seconds += static_cast<double>(bytes) / machine.bandwidth_of(bytes / count);
      }
      return seconds;
    }
    case OperatorKind::Other:
      return std::nullopt;
  }
  return std::nullopt;
}

std::vector<LedgerRow> rows_of(const StepLedger& ledger) {
  const auto steps = static_cast<double>(ledger.steps);
  const probe::OperatorRecord& record = ledger.operators;
  std::vector<LedgerRow> rows;
  double faults = static_cast<double>(record.allocator_faults) / steps;
  const auto add = [&](const char* name, OperatorKind kind) {
    const OfKind all = of_kind(ledger, kind);
    faults += all.faults;
    rows.push_back({.name = name, .seconds = all.seconds, .at_best_s = all.at_best_s});
  };
  add("products", OperatorKind::Product);
  add("attention", OperatorKind::Attention);
  add("passes over elements", OperatorKind::Pass);
  add("views, graph, dispatch", OperatorKind::Other);
  const double allocator_faults = static_cast<double>(record.allocator_faults) / steps;
  rows.push_back({.name = "allocator",
                  .seconds = kNanosecond * static_cast<double>(record.allocator_ns) / steps -
                             allocator_faults * ledger.machine.fault_s});
  rows.push_back({.name = "page faults", .seconds = faults * ledger.machine.fault_s});
  rows.push_back({.name = "messages", .seconds = ledger.message_s});
  rows.push_back({.name = "waits for other ranks", .seconds = ledger.wait_s});
  rows.push_back({.name = "the watch itself",
                  .seconds = kNanosecond * static_cast<double>(record.watching_ns) / steps});
  double seen = 0;
  for (const LedgerRow& row : rows) seen += row.seconds;
  rows.push_back({.name = kRestOfStep, .seconds = ledger.step_s - seen});
  return rows;
}

StepLedger measure_ledger(train::Trainer& trainer, probe::MessageTimes& messages,
                          const nn::Values& inputs, const nn::Values& targets,
                          const LedgerOptions& options) {
  options.at("measuring what this machine does at best");
  StepLedger ledger{.steps = options.steps,
                    .machine = probe::measure_machine(options.machine_seconds)};
  const auto steps = static_cast<double>(options.steps);
  const auto step_s = [&](const char* how) {
    const std::int64_t start = now_ns();
    for (std::int64_t i = 0; i < options.steps; ++i) {
      options.at(str("step ", i + 1, " of ", options.steps, ", ", how));
      trainer.step(inputs, targets);
    }
    return kNanosecond * static_cast<double>(now_ns() - start) / steps;
  };
  options.at("the first steps, which do not count");
  for (std::int64_t i = 0; i < options.warm_up; ++i) trainer.step(inputs, targets);
  const std::int64_t faults = faults_of_process();
  ledger.unwatched_s = step_s("as it is");
  ledger.faults = static_cast<double>(faults_of_process() - faults) / steps;

  probe::OperatorTimes times;
  {
    const Notes notes(messages);
    ledger.step_s = step_s("under the watch");
  }
  ledger.operators = times.take();
  const std::vector<Interval>& computed = ledger.operators.outermost;
  const std::vector<Interval> both = together(messages.waits, computed);
  const std::int64_t waited = covered_ns(both) - covered_ns(computed);
  ledger.wait_s = kNanosecond * static_cast<double>(waited) / steps;
  const std::vector<Interval> all = together(messages.calls, both);
  ledger.message_s = kNanosecond * static_cast<double>(covered_ns(all) - covered_ns(both)) / steps;
  return ledger;
}

}  // namespace penstock::run
