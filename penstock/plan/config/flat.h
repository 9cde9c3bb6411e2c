// The values of a configuration, a line each: for ranks that compare theirs, and for the
// differences between two.
//
// run/from_config.h makes facts of them.  Knows the table of keys (fields.h) and no ranks.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "penstock/config/config.h"
#include "penstock/plan/config/override.h"

namespace penstock::config {

// The values that all ranks must have: JSON by path ("optimizer.params.lr"), in the order of the
// table.  Every key that applies is there, except keys that may differ between ranks: paths, and
// settings that only ranks which print or watch use.
std::vector<std::pair<std::string, std::string>> common_values(const Config& config);

// The paths that are left out, in the order of the table.
std::vector<std::string> keys_of_one_rank();

// What makes `after` of a text that gives `before`: a value for each key that differs; null takes
// one out that no longer applies.  `origin`: as errors name them.
std::vector<Override> changes(const Config& before, const Config& after, const std::string& origin);

}  // namespace penstock::config
