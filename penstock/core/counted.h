// A number of things, in words: "1 rank", "2 ranks".
//
// Whoever words a message with a number that may be 1 calls it.  Knows no other plurals than "s".
#pragma once
#include <cstdint>
#include <ranges>
#include <string>
#include <string_view>

#include "penstock/core/text.h"

namespace penstock {

// many: of a noun to which no "s" is put.
inline std::string counted(std::int64_t count, std::string_view one, std::string_view many = {}) {
  if (count == 1) return str("1 ", one);
  return many.empty() ? str(count, " ", one, "s") : str(count, " ", many);
}
template <std::ranges::sized_range Range>
std::string counted(const Range& things, std::string_view one, std::string_view many = {}) {
  return counted(std::ssize(things), one, many);
}

}  // namespace penstock
