// Facts as Python has them: names of the table, and texts.
//
// Bindings that take or give facts use it.  Knows no ranks.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "penstock/core/agreement/facts.h"

namespace penstock::bindings {

using NamedFacts = std::vector<std::pair<std::string, std::string>>;

inline NamedFacts named(const agreement::Facts& facts) {
  NamedFacts all;
  for (const agreement::StatedFact& each : facts) all.emplace_back(each.name, each.value);
  return all;
}

}  // namespace penstock::bindings
