// Every value of the short types, and floats around every boundary between two of them.
#include "penstock/files/checkpoint/convert.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/support/random.h"

namespace penstock::checkpoint {
namespace {

template <class Bits>
std::string bytes_in(const std::vector<Bits>& values) {
  std::string bytes(values.size() * sizeof(Bits), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <class Bits>
std::vector<Bits> values_in(const std::string& bytes) {
  std::vector<Bits> values(bytes.size() / sizeof(Bits));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::vector<std::uint16_t> every_short() {
  std::vector<std::uint16_t> all;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    all.push_back(static_cast<std::uint16_t>(bits));
  }
  return all;
}

std::vector<float> floats_of(ScalarType type, const std::vector<std::uint16_t>& values) {
  std::string floats;
  EXPECT_EQ(convert(bytes_in(values), type, ScalarType::F32, floats), std::nullopt);
  return values_in<float>(floats);
}

std::uint16_t short_of(ScalarType type, float value) {
  std::string bytes;
  convert(bytes_in(std::vector<float>{value}), ScalarType::F32, type, bytes);
  return values_in<std::uint16_t>(bytes).at(0);
}

// By the definition of the formats: sign, exponent, fraction.
double value_of(ScalarType type, std::uint16_t bits) {
  const int fraction_bits = type == ScalarType::F16 ? 10 : 7;
  const int bias = type == ScalarType::F16 ? 15 : 127;
  const int exponent = (bits & 0x7fff) >> fraction_bits;
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 2 * bias + 1) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  }
  const double significand = fraction + (exponent > 0 ? 1 << fraction_bits : 0);
  return sign * std::ldexp(significand, std::max(exponent, 1) - bias - fraction_bits);
}

class ShortTypes : public testing::TestWithParam<ScalarType> {};

TEST_P(ShortTypes, BecomeFloatExactlyAndComeBack) {
  const std::vector<std::uint16_t> all = every_short();
  const std::vector<float> floats = floats_of(GetParam(), all);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double value = value_of(GetParam(), all[i]);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(floats[i])) << i;
      ASSERT_TRUE(std::isnan(value_of(GetParam(), short_of(GetParam(), floats[i])))) << i;
      continue;
    }
    ASSERT_EQ(static_cast<double>(floats[i]), value) << i;
    ASSERT_EQ(std::signbit(floats[i]), (all[i] & 0x8000) != 0) << i;
    ASSERT_EQ(short_of(GetParam(), floats[i]), all[i]) << i;
  }
}

// Between two neighbours: below the middle, in the middle, above it.
TEST_P(ShortTypes, AreTheNearestOfAFloatAndTheEvenOneOfTwo) {
  for (std::uint16_t bits = 0; std::isfinite(value_of(GetParam(), bits)); ++bits) {
    const auto next = static_cast<std::uint16_t>(bits + 1);
    const double low = value_of(GetParam(), bits);
    // Above the largest value, what would be the next one.
    const double high = std::isfinite(value_of(GetParam(), next))
                            ? value_of(GetParam(), next)
                            : 2 * low - value_of(GetParam(), static_cast<std::uint16_t>(bits - 1));
    const auto middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(static_cast<double>(middle), (low + high) / 2) << bits;
    const std::uint16_t even = bits % 2 == 0 ? bits : next;
    ASSERT_EQ(short_of(GetParam(), middle), even) << bits;
    ASSERT_EQ(short_of(GetParam(), -middle), even | 0x8000) << bits;
    ASSERT_EQ(short_of(GetParam(), std::nextafter(middle, 0.0F)), bits) << bits;
    const float above = std::nextafter(middle, std::numeric_limits<float>::infinity());
    ASSERT_EQ(short_of(GetParam(), above), next) << bits;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ShortTypes, testing::Values(ScalarType::F16, ScalarType::BF16),
                         [](const auto& each) {
                           return std::string(kScalarTypes[static_cast<std::size_t>(each.param)]);
                         });

TEST(Convert, SaysWhichFiniteValueHasNone) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto first_lost = [](ScalarType type, const std::vector<float>& values) {
    std::string to;
    return convert(bytes_in(values), ScalarType::F32, type, to);
  };
  EXPECT_EQ(first_lost(ScalarType::F16, {1, 65504, infinity, -infinity, 65519}), std::nullopt);
  EXPECT_EQ(first_lost(ScalarType::F16, {1, infinity, -65520, 1e30F}), 2U);
  EXPECT_EQ(first_lost(ScalarType::BF16, {1e30F, std::numeric_limits<float>::max()}), 1U);
  EXPECT_EQ(first_lost(ScalarType::F32, {std::numeric_limits<float>::max()}), std::nullopt);
}

TEST(Convert, KeepsEveryNan) {
  for (const std::uint32_t bits : {0x7f800001U, 0xff800001U, 0x7fc00000U, 0x7fffffffU}) {
    for (const ScalarType type : {ScalarType::F16, ScalarType::BF16}) {
      EXPECT_TRUE(std::isnan(value_of(type, short_of(type, std::bit_cast<float>(bits))))) << bits;
    }
  }
}

TEST(Convert, GoesFromOneShortTypeToTheOther) {
  std::string to;
  const std::vector<std::uint16_t> values = {0x3f80, 0xc000, 0x3dcd};  // 1, -2, 0.1 in BF16.
  EXPECT_EQ(convert(bytes_in(values), ScalarType::BF16, ScalarType::F16, to), std::nullopt);
  EXPECT_EQ(values_in<std::uint16_t>(to), (std::vector<std::uint16_t>{0x3c00, 0xc000, 0x2e68}));
}

}  // namespace
}  // namespace penstock::checkpoint
