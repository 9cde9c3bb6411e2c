// What actions cost, as JSON: in a file of its own (`penstock simulate --costs`), in that of a
// schedule, or in a run's directory.
//
// Knows no schedule: whether the numbers fit one is for simulate to say.  The keys are the members
// of Costs.  A number for each stage is a number, or a list with a number per stage, or
// with a list per stage of a number per microbatch:
//   {"forward": 1.5, "backward": [2, [2, 3, 2, 2]], "latency": 0.1,
//    "links": [{"from": 0, "to": 1, "latency": 0.5, "bandwidth": 8}]}
#pragma once
#include <cstddef>
#include <string>

#include "penstock/core/json/tree.h"
#include "penstock/plan/simulate/costs.h"

namespace penstock::simulate {

// What the JSON does not say is as in Costs.
// Throws: ParseError with file, line and column: an unknown key, a value that is no cost.
Costs read_costs(const json::Value& json);
// The same of a text, which errors call `name`.
Costs read_costs(std::string name, std::string text);
inline constexpr std::size_t kCostsBytesMax = std::size_t{1} << 26;  // A longer text is refused.

// What differs from Costs{}, in one line; "{}" where nothing does.
// Law: read_costs() of it gives the same costs.
std::string to_json(const Costs& costs);

}  // namespace penstock::simulate
