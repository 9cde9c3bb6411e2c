// What actions cost, read from a JSON file: `penstock simulate --costs`.
//
// Knows no schedule: whether the numbers fit one is for simulate to say.  The keys are the members
// of simulate::Costs.  A number for each stage is a number, or a list with a number per stage, or
// with a list per stage of a number per microbatch:
//   {"forward": 1.5, "backward": [2, [2, 3, 2, 2]], "latency": 0.1,
//    "links": [{"from": 0, "to": 1, "latency": 0.5, "bandwidth": 8}]}
#pragma once
#include <string>

#include "penstock/simulate/costs.h"

namespace penstock::cli {

// What the file does not say is as in Costs; "-" is the standard input.
// Throws: ParseError with file, line and column: JSON that is none, an unknown key, a value that is
// no number, not finite, or negative; ConfigError when the file cannot be read.
simulate::Costs read_costs_file(const std::string& path);

}  // namespace penstock::cli
