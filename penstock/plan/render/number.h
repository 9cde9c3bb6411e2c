// Numbers as text, the same on every machine and in every locale.
//
// The drawings and the trace of render/ print all their numbers with these.  Knows no units.
#pragma once
#include <string>

namespace penstock::render {

// `value` with `decimals` digits after the point: fixed(0.5, 3) == "0.500"; never "-0".
// REQUIRES: value is finite, 0 <= decimals <= 17.
std::string fixed(double value, int decimals);

// Does what fixed() does, without the zeros at the end: rounded(0.5, 3) == "0.5", rounded(2.0, 3)
// == "2".
std::string rounded(double value, int decimals);

// A share of 1: percent(0.125) == "12.5%".
// REQUIRES: share is finite.
std::string percent(double share);

// Six significant digits: significant(1.0 / 3) == "0.333333", significant(33) == "33".
// REQUIRES: value is finite.
std::string significant(double value);

}  // namespace penstock::render
