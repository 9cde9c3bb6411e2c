// Says what takes no run whose ranks share layers (mesh.tensor above 1): commands that know whole
// layers alone.
//
// Such a command asks before it does anything.  What no such run can have, validate() says.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "penstock/config/config.h"

namespace penstock::config {

// Throws: ConfigError where ranks share layers.  `who`: the command, as "profile"; `why`: what it
// does with whole layers; `instead`: what takes others.
void require_whole_layers(const Config& config, std::string_view who, std::string_view why,
                          const std::vector<std::string>& instead);

}  // namespace penstock::config
