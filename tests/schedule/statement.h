// What a row of the registry states of its schedule, worked out for sizes: "at most v min(m, p)".
//
// Read from the texts that people read, so that these are what the tests hold the programs to.
// What stands behind a semicolon, of groups or of another rule, is left out.  Knows no schedule.
#pragma once
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "penstock/core/text.h"
#include "penstock/plan/schedule/generators/units.h"
#include "penstock/schedule/generators/generators.h"

namespace penstock::schedule {

using Symbols = std::unordered_map<char, double>;

// The letters of the rows' texts, for a stage's F, I and W that take a unit of time each.
inline Symbols symbols_of(const Sizes& sizes, std::int32_t rank = 0) {
  const double v = sizes.stages_per_rank;
  return {{'p', sizes.ranks},     {'v', v},    {'m', sizes.microbatches},
          {'n', group_of(sizes)}, {'r', rank}, {'f', v},
          {'b', 2 * v},           {'i', v},    {'w', v}};
}

// Worked out while it is read, from left to right.
class Expression {
 public:
  Expression(std::string_view text, const Symbols& symbols)
      : written_(text), text_(text), symbols_(symbols) {
    std::erase(text_, ' ');
  }

  double value() {
    const double value = sum();
    if (at_ != text_.size()) refuse();
    return value;
  }

 private:
  double sum() {
    double value = product();
    while (is_next('+') || is_next('-')) {
      const double sign = text_[at_++] == '+' ? 1 : -1;
      value += sign * product();
    }
    return value;
  }

  double product() {
    double value = factor();
    while (at_ < text_.size()) {
      if (take('/')) {
        value /= factor();
      } else if (is_next('(') || is_alnum(text_[at_])) {
        value *= factor();
      } else {
        break;
      }
    }
    return value;
  }

  double factor() {
    if (take('(')) return closed(sum());
    if (take("floor(")) return closed(std::floor(sum()));
    if (take("max(")) return extreme([](double a, double b) { return std::max(a, b); });
    if (take("min(")) return extreme([](double a, double b) { return std::min(a, b); });
    if (at_ < text_.size()) {
      if (const auto symbol = symbols_.find(text_[at_]); symbol != symbols_.end()) {
        ++at_;
        return symbol->second;
      }
    }
    std::int32_t number = 0;
    const char* begin = text_.data() + at_;
    const auto read = std::from_chars(begin, text_.data() + text_.size(), number);
    if (read.ptr == begin) refuse();
    at_ += static_cast<std::size_t>(read.ptr - begin);
    return number;
  }

  template <class Choose>
  double extreme(const Choose& choose) {
    double value = sum();
    while (take(',')) value = choose(value, sum());
    return closed(value);
  }

  double closed(double value) {
    if (!take(')')) refuse();
    return value;
  }

  static bool is_alnum(char c) { return ('a' <= c && c <= 'z') || ('0' <= c && c <= '9'); }
  bool is_next(char c) const { return at_ < text_.size() && text_[at_] == c; }
  bool take(char c) { return take(std::string_view(&c, 1)); }
  bool take(std::string_view word) {
    if (!std::string_view(text_).substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  [[noreturn]] void refuse() const {
    throw std::invalid_argument(str("\"", written_, "\" is no expression from \"",
                                    text_.substr(at_),
                                    "\" on; tests/schedule/statement.h has examples"));
  }

  std::string_view written_;
  std::string text_;  // The text without spaces.
  const Symbols& symbols_;
  std::size_t at_ = 0;
};

// "(v-1)n+max(1, floor(m/p))/2"; factors stand side by side.
// Throws: std::invalid_argument for what is no such expression.
inline double value_of(std::string_view expression, const Symbols& symbols) {
  return Expression(expression, symbols).value();
}

// Commas within parentheses are of an expression.
inline std::vector<std::string_view> split_conditions(std::string_view text) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    depth += text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0;
    if (depth > 0 || text[i] != ',') continue;
    parts.push_back(text.substr(begin, i - begin));
    begin = i + 1;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

inline bool is_multiple(double value, double of) { return std::fmod(value, of) == 0; }

struct Relation {
  std::string_view words;
  bool (*holds)(double left, double right);
};
inline constexpr std::array<Relation, 5> kRelations = {
    {{" divides ", [](double left, double right) { return is_multiple(right, left); }},
     {" a multiple of ", [](double left, double right) { return is_multiple(left, right); }},
     {">=", [](double left, double right) { return left >= right; }},
     {"<=", [](double left, double right) { return left <= right; }},
     {"=", [](double left, double right) { return left == right; }}}};

inline bool condition_holds(std::string_view condition, const Symbols& symbols) {
  constexpr std::string_view kEven = " even";
  if (condition == "any") return true;
  if (condition.ends_with(kEven)) {
    condition.remove_suffix(kEven.size());
    return is_multiple(value_of(condition, symbols), 2);
  }
  for (const Relation& relation : kRelations) {
    const std::size_t at = condition.find(relation.words);
    if (at == condition.npos) continue;
    const std::string_view right = condition.substr(at + relation.words.size());
    return relation.holds(value_of(condition.substr(0, at), symbols), value_of(right, symbols));
  }
  throw std::invalid_argument(
      str("\"", condition, "\" is no condition; tests/schedule/statement.h has examples"));
}

inline std::string_view before_semicolon(std::string_view text) {
  return text.substr(0, text.find(';'));
}

// "m = p, v <= 6", "p divides m", "m a multiple of 2p", "v even", "any".
// Throws: std::invalid_argument as value_of().
inline bool holds(std::string_view conditions, const Symbols& symbols) {
  const auto parts = split_conditions(before_semicolon(conditions));
  return std::ranges::all_of(parts, [&](std::string_view part) {
    part.remove_prefix(std::min(part.find_first_not_of(' '), part.size()));
    return condition_holds(part, symbols);
  });
}

// "at most (p-1)f of the makespan where m >= p": all but the expression may be missing.
struct Statement {
  explicit Statement(std::string_view text);

  bool at_most = false;
  std::string_view expression;
  bool of_the_makespan = false;
  std::string_view where = "any";
};

inline Statement::Statement(std::string_view text) : expression(before_semicolon(text)) {
  constexpr std::string_view kAtMost = "at most ", kShare = " of the makespan", kWhere = " where ";
  at_most = expression.starts_with(kAtMost);
  if (at_most) expression.remove_prefix(kAtMost.size());
  if (const std::size_t at = expression.find(kWhere); at != expression.npos) {
    where = expression.substr(at + kWhere.size());
    expression = expression.substr(0, at);
  }
  of_the_makespan = expression.ends_with(kShare);
  if (of_the_makespan) expression.remove_suffix(kShare.size());
}

}  // namespace penstock::schedule
