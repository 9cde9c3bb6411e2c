#include "penstock/core/byte_size.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(ByteSize, IsToldInMebibytes) {
  constexpr std::uint64_t kMebibyte = 1 << 20;
  EXPECT_EQ(mebibytes(0), "0 MiB");
  EXPECT_EQ(mebibytes(1), "0.1 MiB");
  EXPECT_EQ(mebibytes(kMebibyte), "1.0 MiB");
  EXPECT_EQ(mebibytes(kMebibyte * 5 / 2), "2.5 MiB");
  EXPECT_EQ(mebibytes(10 * kMebibyte - 1), "10 MiB");
  EXPECT_EQ(mebibytes(10 * kMebibyte + kMebibyte / 2), "11 MiB");
  EXPECT_EQ(mebibytes(std::uint64_t{1} << 60), "1099511627776 MiB");
}

TEST(ByteSize, IsReadWithItsUnit) {
  EXPECT_EQ(parse_bytes("4096"), 4096U);
  EXPECT_EQ(parse_bytes("0B"), 0U);
  EXPECT_EQ(parse_bytes("5GB"), 5'000'000'000U);
  EXPECT_EQ(parse_bytes("500 mb"), 500'000'000U);
  EXPECT_EQ(parse_bytes("64MiB"), 64U << 20);
  EXPECT_EQ(parse_bytes("2tib"), std::uint64_t{2} << 40);
  for (const char* text : {"", "GB", "-1", "1.5GB", "5 G B", "5XB", "1152921504606846976",
                           "99999999TB", "99999999999999999999"}) {
    EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace penstock
