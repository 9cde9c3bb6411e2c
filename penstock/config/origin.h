// Where a value of the configuration was written: "gpt.json:3:5", or "--steps".
//
// The JSON reader makes them, errors and the resolved config print them.
// Knows neither the values nor the keys.
#pragma once
#include <compare>
#include <cstdint>
#include <map>
#include <string>

namespace penstock::config {

struct Origin {
  std::string source;       // The file as the user named it, or the command-line option.
  std::int32_t line = 0;    // From 1; 0 when the source is an option.
  std::int32_t column = 0;  // From 1, in characters; 0 when the source is an option.
  friend auto operator<=>(const Origin&, const Origin&) = default;
};

// "source:line:column", or the source alone where there is no line.
std::string to_string(const Origin& origin);

// By key, as in "model.layers".  A key that is not in the map has its default value.
using Origins = std::map<std::string, Origin, std::less<>>;

}  // namespace penstock::config
