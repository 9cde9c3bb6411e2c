#include "penstock/files/checkpoint/convert.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "penstock/core/check.h"

namespace penstock::checkpoint {
namespace {

using Short = std::uint16_t;
using Word = std::uint32_t;

constexpr Word kSign = 0x80000000;
constexpr Word kInfinity = 0x7f800000;

// `bits` without the lowest `count` of them, rounded to nearest, ties to even.
Word round_off(Word bits, Word count) {
  const Word half = Word{1} << (count - 1);
  return (bits + half - 1 + ((bits >> count) & 1)) >> count;
}

struct Float32 {
  using Bits = Word;
  static float to_float(Bits bits) { return std::bit_cast<float>(bits); }
  static Bits from_float(float value) { return std::bit_cast<Bits>(value); }
};

struct BFloat16 {
  using Bits = Short;
  static constexpr Word kShift = 16;
  static float to_float(Bits bits) { return std::bit_cast<float>(Word{bits} << kShift); }
  static Bits from_float(float value) {
    const Word bits = std::bit_cast<Word>(value);
    // Keeps a NaN from becoming an infinity if the payload that is left is 0.
    constexpr Word kQuiet = 0x40;
    if (std::isnan(value)) return static_cast<Bits>((bits >> kShift) | kQuiet);
    return static_cast<Bits>(round_off(bits, kShift));
  }
};

struct Float16 {
  using Bits = Short;
  static constexpr Word kShift = 13;         // Difference of the fractions: 23 bits and 10.
  static constexpr Word kExponents = 112;    // Difference of the biases, 127 and 15.
  static constexpr Word kLeastNormal = 113;  // 2^-14, as a float's exponent.
  static constexpr Word kFraction = 0x3ff;
  static constexpr Word kExponentOfInfinity = 31;

  static float to_float(Bits bits) {
    const Word sign = Word{static_cast<Word>(bits) & 0x8000U} << 16;
    const Word exponent = (Word{bits} >> 10) & 0x1f, fraction = bits & kFraction;
    if (exponent == kExponentOfInfinity) {
      return std::bit_cast<float>(sign | kInfinity | (fraction << kShift));
    }
    if (exponent == 0) {
      const float magnitude = std::ldexp(static_cast<float>(fraction), -24);
      return sign != 0 ? -magnitude : magnitude;
    }
    return std::bit_cast<float>(sign | ((exponent + kExponents) << 23) | (fraction << kShift));
  }

  static Bits from_float(float value) {
    const Word bits = std::bit_cast<Word>(value);
    const Word sign = (bits & kSign) >> 16, magnitude = bits & ~kSign;
    constexpr Word kHalfInfinity = 0x7c00, kQuiet = 0x200;
    constexpr Word kTooLarge = 0x47800000;  // 65536; what is below is rounded to it, or not.
    const auto with_sign = [&](Word rest) { return static_cast<Bits>(sign | rest); };
    if (std::isnan(value)) {
      return with_sign(kHalfInfinity | kQuiet | ((magnitude >> kShift) & kFraction));
    }
    if (magnitude >= kTooLarge) return with_sign(kHalfInfinity);
    const Word exponent = magnitude >> 23;
    if (exponent >= kLeastNormal) {
      return with_sign(round_off(magnitude - (kExponents << 23), kShift));
    }
    constexpr Word kNothing = 101;  // Values below 2^-25 are nearer to 0 than to 2^-24.
    if (exponent <= kNothing) return with_sign(0);
    const Word significand = (magnitude & 0x7fffff) | 0x800000;
    return with_sign(round_off(significand, kShift + kLeastNormal - exponent));
  }
};

template <class From, class To>
std::optional<std::size_t> convert_all(std::string_view from, std::string& to) {
  const std::size_t count = from.size() / sizeof(typename From::Bits);
  to.resize(count * sizeof(typename To::Bits));
  std::optional<std::size_t> too_large;
  for (std::size_t i = 0; i < count; ++i) {
    typename From::Bits bits = 0;
    std::memcpy(&bits, from.data() + i * sizeof bits, sizeof bits);
    const float value = From::to_float(bits);
    const typename To::Bits result = To::from_float(value);
    std::memcpy(to.data() + i * sizeof result, &result, sizeof result);
    if (!too_large && std::isfinite(value) && !std::isfinite(To::to_float(result))) too_large = i;
  }
  return too_large;
}

template <class From>
std::optional<std::size_t> convert_from(std::string_view from, ScalarType wanted, std::string& to) {
  if (wanted == ScalarType::F32) return convert_all<From, Float32>(from, to);
  if (wanted == ScalarType::F16) return convert_all<From, Float16>(from, to);
  return convert_all<From, BFloat16>(from, to);
}

}  // namespace

bool is_convertible(ScalarType type) {
  return type == ScalarType::F32 || type == ScalarType::F16 || type == ScalarType::BF16;
}

std::optional<std::size_t> convert(std::string_view from, ScalarType is, ScalarType wanted,
                                   std::string& to) {
  PENSTOCK_CHECK(is_convertible(is) && is_convertible(wanted) && from.size() % bytes_of(is) == 0,
                 from.size(), " bytes");
  if (is == wanted) {
    to.assign(from);
    return std::nullopt;
  }
  if (is == ScalarType::F32) return convert_from<Float32>(from, wanted, to);
  if (is == ScalarType::F16) return convert_from<Float16>(from, wanted, to);
  return convert_from<BFloat16>(from, wanted, to);
}

}  // namespace penstock::checkpoint
