// What actions cost (simulate/costs_json.h), from a file of its own: `penstock simulate --costs`.
//
// Commands that take costs read them with it.  Knows no keys.
#pragma once
#include <string>

#include "penstock/plan/simulate/costs_json.h"

namespace penstock::cli {

// "-" is the standard input.
// Throws: ParseError as simulate::read_costs(), and for JSON that is none; ConfigError when the
// file cannot be read.
simulate::Costs read_costs_file(const std::string& path);

}  // namespace penstock::cli
