// Tells how long a run has lasted, over all starts of its ranks.
//
// penstock's launcher hands on when the run began; under torchrun it is when the process that
// starts the ranks again began.  Any other launcher's run begins with its ranks: a job that a batch
// system starts again has its whole time again.
// Units: seconds since this host was started, which suspended time counts in.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "penstock/launch/environment.h"

namespace penstock::launch {

// The variable by which penstock's launcher tells its ranks when their run began.
inline constexpr const char* kRunBeganVariable = "PENSTOCK_RUN_BEGAN";

double host_seconds();

// When a process began; absent where the system does not say.
std::optional<double> process_began(std::int64_t pid);

// Seconds of the run that this process is a rank of.  0: nobody knows.
double seconds_of_run(const LauncherEnvironment& self, const VariableLookup& variable);

}  // namespace penstock::launch
