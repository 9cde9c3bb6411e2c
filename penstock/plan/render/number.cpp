#include "penstock/plan/render/number.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "penstock/core/check.h"

namespace penstock::render {
namespace {

// The sign, the digits of the largest double, the point, and 17 decimals.
constexpr int kLongest = std::numeric_limits<double>::max_exponent10 + 21;

std::string printed(double value, std::chars_format format, int precision) {
  PENSTOCK_CHECK(std::isfinite(value), "a drawing has no place for ", value);
  std::array<char, kLongest> buffer{};
  const auto result =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format, precision);
  PENSTOCK_CHECK(result.ec == std::errc{}, "precision ", precision);
  std::string text(buffer.data(), result.ptr);
  const bool is_zero = text.find_first_not_of("-0.") == std::string::npos;
  return is_zero && text[0] == '-' ? text.substr(1) : text;
}

}  // namespace

std::string fixed(double value, int decimals) {
  return printed(value, std::chars_format::fixed, decimals);
}

std::string rounded(double value, int decimals) {
  std::string text = fixed(value, decimals);
  if (text.find('.') == std::string::npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string percent(double share) { return fixed(100 * share, 1) + '%'; }

std::string significant(double value) { return printed(value, std::chars_format::general, 6); }

}  // namespace penstock::render
