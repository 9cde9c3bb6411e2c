// The values of a configuration, a line each: for ranks that compare theirs, and for the
// differences between two.
//
// Knows the table of keys (fields.h) and no ranks.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "penstock/config/config.h"
#include "penstock/config/override.h"

namespace penstock::config {

// By path ("optimizer.params.lr"), as JSON: every key that applies, in the order of the table, but
// those that may differ between ranks, since each of them reads or writes something of its own:
// paths, and what only the ranks that print and watch go by.
std::vector<std::pair<std::string, std::string>> common_values(const Config& config);

// The paths that are left out, in the order of the table.
std::vector<std::string> keys_of_one_rank();

// What makes `after` of a text that gives `before`: a value for each key that differs; null takes
// one out that no longer applies.  `origin`: as errors name them.
std::vector<Override> changes(const Config& before, const Config& after, const std::string& origin);

}  // namespace penstock::config
