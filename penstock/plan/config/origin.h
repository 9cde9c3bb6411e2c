// The place at which each value of the configuration was written.
//
// read makes them, validate and write print them.  Knows neither the values nor the keys.
#pragma once
#include <map>
#include <string>

#include "penstock/core/json/origin.h"

namespace penstock::config {

using json::Origin;

// Origins by key, as "model.layers".  A key that is not in the map has its default value.
using Origins = std::map<std::string, Origin, std::less<>>;

}  // namespace penstock::config
