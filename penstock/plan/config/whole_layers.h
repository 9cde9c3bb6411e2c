// Says what takes no run whose ranks share layers (mesh.tensor above 1): commands that know whole
// layers alone.
//
// Such a command asks before it does anything.  What no such run can have, validate() says.
#pragma once
#include <string_view>

#include "penstock/config/config.h"

namespace penstock::config {

// Throws: ConfigError where ranks share layers.  `who`: the command, as "memory".
void require_whole_layers(const Config& config, std::string_view who);

}  // namespace penstock::config
