// The ledger of a rank's step: products, passes over elements, page faults, the allocator, waits.
//
// `penstock profile --ledger` prints it.  Runs a Trainer's own steps, some as they are and some
// under a watch (probe/operator_times.h).  A part of the time is in one row only; what no row has
// seen is the last one.  Knows no command line.
// Units: seconds, bytes, operations; of one step, where it does not say otherwise.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "penstock/runtime/probe/machine_rates.h"
#include "penstock/runtime/probe/message_times.h"
#include "penstock/runtime/probe/operator_times.h"
#include "penstock/train/trainer.h"

namespace penstock::run {

struct StepLedger {
  std::int64_t steps = 0;  // Steps under the watch.
  double step_s = 0;       // Mean of these.
  double unwatched_s = 0;  // Mean of as many others.
  double faults = 0;       // Page faults of one of those, of all threads.
  double wait_s = 0;
  double message_s = 0;             // Messages that begin, without waits.
  probe::OperatorRecord operators;  // Sums of the steps under the watch.
  probe::MachineRates machine;
};

// A line of the ledger.
struct LedgerRow {
  std::string name;
  double seconds = 0;
  // What the machine's best rate makes of it; absent where there is no such rate.
  std::optional<double> at_best_s = {};
};

inline constexpr const char* kRestOfStep = "not seen";

// Law: their seconds add up to step_s.
std::vector<LedgerRow> rows_of(const StepLedger& ledger);

// Seconds of an operator's calls at the machine's best rates; absent for one without a rate.
std::optional<double> at_best(const probe::Operator& op, const probe::OperatorCost& cost,
                              const probe::MachineRates& machine);

struct LedgerOptions {
  std::int64_t warm_up = 3;  // Steps that are not counted.
  std::int64_t steps = 5;
  double machine_seconds = 1.0;  // Time for the machine's rates.
  // Hears what is done next, for who waits.
  std::function<void(const std::string& what)> at = [](const std::string&) {};
};

// Collective over all ranks of the trainer, whose communicator notes `messages`.
StepLedger measure_ledger(train::Trainer& trainer, probe::MessageTimes& messages,
                          const nn::Values& inputs, const nn::Values& targets,
                          const LedgerOptions& options);

}  // namespace penstock::run
