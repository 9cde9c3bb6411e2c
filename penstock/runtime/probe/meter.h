// Counts the bytes of tensors that are there, the most that were at one time, and kernels.
//
// The probe asks one.  Which memory it is of, and who gives that out, its class says.
// Units: bytes.
#pragma once
#include <cstdint>

#include "penstock/plan/devices/kernel.h"

namespace penstock::probe {

class Meter {
 public:
  virtual ~Meter() = default;
  // Bytes since the meter was made, less what was there before and has gone.
  virtual std::int64_t now() const = 0;
  virtual std::int64_t peak() const = 0;
  // Makes the peak that of what comes.
  virtual void reset_peak() = 0;
  // Kernels since the last call; none where nobody knows them.
  virtual devices::Kernels take_kernels() { return {}; }
};

}  // namespace penstock::probe
