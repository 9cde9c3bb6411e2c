// The step of a run, as its configuration says it, to be emulated.
//
// `penstock emulate` asks for it.  The model of a folder needs config.json alone.
#pragma once
#include <cstdint>

#include "penstock/config/config.h"
#include "penstock/emulate/emulate.h"

namespace penstock::emulate {

// Throws: ConfigError as the run would.
Step step_of(const config::Config& config, std::int64_t ranks);

}  // namespace penstock::emulate
