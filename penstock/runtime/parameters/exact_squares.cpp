#include "penstock/runtime/parameters/exact_squares.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "penstock/core/check.h"

namespace penstock::parameters {
namespace {

constexpr int kDigitBits = 16;
constexpr std::uint64_t kDigitMask = (std::uint64_t{1} << kDigitBits) - 1;
// The square of the smallest float is 2^-298: the value of the first digit.
constexpr int kFirstDigit = -298;

using Digits = std::array<std::uint64_t, kSquareDigits>;

// Each element has digits of its own, and nothing is carried: else the digits of a sum would depend
// on what was added first.
void add_square(Digits& digits, float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t exponent = (bits >> 23) & 0xff;
  const std::uint64_t mantissa = (bits & 0x7fffff) | (exponent == 0 ? 0U : 0x800000U);
  // An element of exponent 0 or 1 counts units of 2^-149.
  const std::uint32_t place = 2 * (std::max(exponent, 1U) - 1);
  const std::uint64_t square = (mantissa * mantissa) << (place % kDigitBits);  // 62 bits.
  std::uint64_t* const digit = digits.data() + place / kDigitBits;
  digit[0] += square & kDigitMask;
  digit[1] += (square >> kDigitBits) & kDigitMask;
  digit[2] += (square >> (2 * kDigitBits)) & kDigitMask;
  digit[3] += square >> (3 * kDigitBits);
}

}  // namespace

bool has_exact_squares(const at::Tensor& tensor) {
  const bool is_short =
      tensor.scalar_type() == at::kFloat || c10::isReducedFloatingType(tensor.scalar_type());
  return tensor.is_cpu() && is_short;
}

void add_squares(ExactSquares& sum, const at::Tensor& tensor) {
  PENSTOCK_CHECK(has_exact_squares(tensor), tensor.scalar_type());
  const at::Tensor flat = tensor.to(at::kFloat).contiguous();
  const auto* const values = flat.const_data_ptr<float>();
  const std::int64_t count = flat.numel();
  Digits digits{};
  for (std::int64_t i = 0; i < count; ++i) add_square(digits, values[i]);
  for (std::size_t digit = 0; digit < digits.size(); ++digit) {
    const int unit = kFirstDigit + static_cast<int>(digit) * kDigitBits;
    sum[digit] += std::ldexp(static_cast<double>(digits[digit]), unit);
  }
  if (count > 0 && !std::isfinite(flat.abs().max().item<float>())) sum.back() = HUGE_VAL;
}

}  // namespace penstock::parameters
