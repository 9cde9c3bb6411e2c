// The place where a JSON value was written: "gpt.json:3:5", or "--steps".
//
// tree.h makes them, errors and the resolved configuration print them.  Knows no values.
#pragma once
#include <compare>
#include <cstdint>
#include <string>

namespace penstock::json {

struct Origin {
  std::string source;       // The file as the user named it, or the command-line option.
  std::int32_t line = 0;    // Counts from 1; 0 when the source is an option.
  std::int32_t column = 0;  // Counts from 1, in characters; 0 when the source is an option.
  friend auto operator<=>(const Origin&, const Origin&) = default;
};

// "source:line:column", or the source alone where there is no line.
std::string to_string(const Origin& origin);

}  // namespace penstock::json
