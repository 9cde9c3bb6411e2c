// A short text by a format of printf's, for numbers in the tables that commands print.
//
// Knows no tables.
#pragma once
#include <array>
#include <cstdio>
#include <string>

namespace penstock::cli {

// formatted("%.2f", 0.5) == "0.50".  REQUIRES: less than 128 characters.
template <class... Values>
std::string formatted(const char* format, Values... values) {
  std::array<char, 128> text{};
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

}  // namespace penstock::cli
