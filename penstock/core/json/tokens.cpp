#include "penstock/core/json/tokens.h"

#include <algorithm>

#include "penstock/core/text.h"

namespace penstock::json {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         c == '+' || c == '-' || c == '.';
}

std::size_t word_end(std::string_view text, std::size_t begin) {
  std::size_t end = begin;
  while (end < text.size() && is_word(text[end])) ++end;
  return end;
}

std::size_t string_end(std::string_view text, std::size_t begin) {
  std::size_t i = begin + 1;
  while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2u : 1u;
  return std::min(i + 1, text.size());
}

// One past the comment at `begin`; `begin` itself when there is none, or it does not end.
std::size_t comment_end(std::string_view text, std::size_t begin) {
  const std::string_view opening = text.substr(begin, 2);
  if (opening == "//") return std::min(text.find_first_of("\r\n", begin), text.size());
  if (opening != "/*") return begin;
  const std::size_t close = text.find("*/", begin + 2);
  return close == std::string_view::npos ? begin : close + 2;
}

// The parts of "[id] parse error at line 1, column 2: syntax error while parsing CONTEXT - CAUSE;
// last read: '...'" or "...- CAUSE; expected EXPECTED".
struct LibraryMessage {
  std::string_view context;
  std::string_view cause;
  std::string_view expected;
};

std::string_view between(std::string_view text, std::string_view open, std::string_view close) {
  const std::size_t begin = text.find(open);
  if (begin == std::string_view::npos) return {};
  const std::string_view rest = text.substr(begin + open.size());
  return rest.substr(0, rest.find(close));
}

LibraryMessage take_apart(std::string_view message) {
  LibraryMessage parts;
  parts.context = between(message, "while parsing ", " - ");
  const std::string_view tail = message.substr(std::min(message.find(" - "), message.size()));
  const std::size_t last_read = tail.find("; last read: ");
  parts.cause = between(tail.substr(0, last_read), " - ", "; expected ");
  if (last_read == std::string_view::npos) parts.expected = between(tail, "; expected ", "\n");
  return parts;
}

// Names what is expected.  In a list or an object the library names only the closing bracket.
std::string expected_there(const LibraryMessage& parts) {
  if (parts.expected.empty()) return "";
  const bool closing = parts.expected == "'}'" || parts.expected == "']'";
  return str("; expected ", closing ? "',' or " : "", parts.expected);
}

std::string describe_word(std::string_view word, const LibraryMessage& parts) {
  const std::string lower = lower_case(word);
  for (const std::string_view number : {"nan", "inf", "infinity"}) {
    if (lower.ends_with(number) && lower.size() <= number.size() + 1) {
      return str("JSON has no number ", word);
    }
  }
  const bool numeric = word.find_first_not_of("0123456789.+-eE") == std::string_view::npos;
  if (numeric || parts.cause == "invalid number") return str("not a JSON number: ", word);
  if (parts.context == "object key") return str("a key takes double quotes: ", in_quotes(word));
  const std::string hint = suggest(word, {"true", "false", "null"});
  return str("unexpected ", in_quotes(word),
             hint.empty() ? "; a string takes double quotes" : hint);
}

}  // namespace

Gap skip_gap(std::string_view text, std::size_t begin) {
  Gap gap{.end = begin, .comma = {}};
  while (gap.end < text.size()) {
    const char c = text[gap.end];
    if (c == ',') gap.comma = gap.end;
    const bool filler = is_space(c) || c == ',' || c == ':';
    const std::size_t next = filler ? gap.end + 1 : comment_end(text, gap.end);
    if (next == gap.end) break;
    gap.end = next;
  }
  return gap;
}

std::size_t token_end(std::string_view text, std::size_t begin) {
  if (begin >= text.size()) return text.size();
  if (text[begin] == '"') return string_end(text, begin);
  return std::max(begin + 1, word_end(text, begin));
}

SyntaxError describe_syntax_error(std::string_view text, std::size_t previous_end, std::size_t read,
                                  std::string_view message) {
  const LibraryMessage parts = take_apart(message);
  const std::size_t last_read = std::min(read == 0 ? 0 : read - 1, text.size());
  const Gap gap = skip_gap(text, std::min(previous_end, last_read));
  const std::size_t begin = std::min(gap.end, last_read);
  const char c = begin < text.size() ? text[begin] : '\0';
  const std::string_view word =
      text.substr(begin, std::min<std::size_t>(40, word_end(text, begin) - begin));

  if (message.find("number overflow") != std::string_view::npos) {
    return {begin, str("number ", word, " is too large for a double")};
  }
  if (trim(text).empty()) return {0, "the text is empty; expected an object such as {\"seed\": 1}"};
  if (parts.cause.starts_with("invalid string")) return {last_read, std::string(parts.cause)};
  if ((c == '}' || c == ']') && gap.comma) {
    return {*gap.comma, str("trailing comma: nothing follows before the '", c, "'")};
  }
  if (c == '\'') return {begin, "a string takes double quotes"};
  const bool bad_word = parts.cause == "invalid literal" || parts.cause == "invalid number";
  if (bad_word && !word.empty()) return {begin, describe_word(word, parts)};
  return {begin, str(parts.cause, expected_there(parts))};
}

}  // namespace penstock::json
