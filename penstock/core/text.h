// Small text helpers: concatenation, lists, numbers that parse back, nearest word.
//
// Used wherever a value is printed or an error is worded.  Knows no type of penstock.
#pragma once
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// The arguments, streamed one after the other: str("rank ", 3) == "rank 3".
template <class... Args>
std::string str(const Args&... args) {
  if constexpr (sizeof...(Args) == 0) {
    return {};
  } else {
    std::ostringstream out;
    (out << ... << args);
    return std::move(out).str();
  }
}

// join({1, 2, 3}, ", ") == "1, 2, 3".
template <class Range>
std::string join(const Range& items, std::string_view separator) {
  std::ostringstream out;
  bool first = true;
  for (const auto& item : items) {
    if (!first) out << separator;
    first = false;
    out << item;
  }
  return std::move(out).str();
}

std::vector<std::string> split(std::string_view text, char separator);
std::string_view trim(std::string_view text);
std::string lower_case(std::string_view text);

// The whole of `text` as a decimal integer; nothing for an empty text, junk or overflow.
std::optional<std::int64_t> parse_integer(std::string_view text);
// The number that the text is as a whole, such as "1e-3" or "inf".
std::optional<double> parse_number(std::string_view text);

// The shortest decimal text that parses back to the same bits: strtod(shortest(x)) == x.
// "nan", "inf" and "-inf" for the values that JSON has no number for.
std::string shortest(double value);
std::string shortest(float value);

// `text` as a JSON string literal, quotes included; bytes that are not UTF-8 become U+FFFD.
std::string json_quote(std::string_view text);

// The same of at most about 80 bytes, so that a hostile file cannot fill the terminal.
std::string in_quotes(std::string_view text);
// A path of the user's, whole: its end is what tells it from others.
inline std::string quoted_path(std::string_view path) { return json_quote(path); }

// The candidate with the smallest edit distance to `word`, ignoring case; nothing when every one
// is farther than a third of the longer word (at least 1, so that short words still match).
std::optional<std::string> nearest(std::string_view word,
                                   const std::vector<std::string>& candidates);

// "; did you mean \"x\"?" for the nearest candidate, or "" when none is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

// A longer word is no misspelt one; the search for the nearest takes time in its length.
inline constexpr std::size_t kWordMax = 80;

// did_you_mean(), but "" for a word over kWordMax: for words of any length.
std::string suggest(std::string_view word, const std::vector<std::string>& candidates);

// 64-bit FNV-1a (Fowler, Noll, Vo): stable across machines and versions; not for adversaries.
std::uint64_t stable_hash(std::string_view bytes);

// One step of splitmix64 (Steele, Lea, Flood, OOPSLA 2014): a well-mixed function of `x`.
std::uint64_t mix(std::uint64_t x);

}  // namespace penstock
