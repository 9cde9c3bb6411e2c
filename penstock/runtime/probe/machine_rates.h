// What this machine does at best, for a rank that has as many neighbours as there are.
//
// The ledger of a step compares operators with it (run/step_ledger.h).  All ranks of a machine
// measure at one time.  Knows no model.
// Units: operations, bytes and faults a second; bytes.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

namespace penstock::probe {

struct MachineRates {
  double product_peak = 0;  // Operations a second: the best of square products of floats.
  // What passes move a second, by the bytes of one; from caches to memory.
  std::vector<std::pair<std::int64_t, double>> bandwidths;
  double fault_s = 0;  // Time of a page fault, with the zeros that are written.

  // The bandwidth for passes of so many bytes.  REQUIRES: there is one.
  double bandwidth_of(std::int64_t bytes) const;
};

// Takes about so many seconds.
MachineRates measure_machine(double seconds);

}  // namespace penstock::probe
