#include "penstock/core/text.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "tests/support/random.h"

namespace penstock {
namespace {

using testing_support::Random;

TEST(Str, StreamsItsArgumentsOneAfterTheOther) {
  EXPECT_EQ(str("rank ", 3, ": ", 'x', 0.5), "rank 3: x0.5");
  EXPECT_EQ(str(), "");
}

TEST(Join, PutsTheSeparatorBetweenItemsOnly) {
  EXPECT_EQ(join(std::vector{1, 2, 3}, ", "), "1, 2, 3");
  EXPECT_EQ(join(std::vector<std::string>{"alone"}, ", "), "alone");
  EXPECT_EQ(join(std::vector<int>{}, ", "), "");
}

TEST(Split, KeepsEmptyPartsAndJoinUndoesIt) {
  EXPECT_EQ(split("a,,b,", ','), (std::vector<std::string>{"a", "", "b", ""}));
  EXPECT_EQ(split("", ','), (std::vector<std::string>{""}));
  for (const char* text : {"", ",", "a", "a,b", ",a,,b,"})
    EXPECT_EQ(join(split(text, ','), ","), text);
}

TEST(Trim, TakesWhiteSpaceFromTheEndsOnly) {
  EXPECT_EQ(trim(" \t a b\r\n"), "a b");
  EXPECT_EQ(trim("a"), "a");
  EXPECT_EQ(trim(" \n "), "");
  EXPECT_EQ(trim(""), "");
}

TEST(LowerCase, ChangesAsciiLettersOnly) {
  EXPECT_EQ(lower_case("AZaz09_\xC3\x84[@"), "azaz09_\xC3\x84[@");
}

TEST(ParseInteger, TakesWholeDecimalTextsOnly) {
  EXPECT_EQ(parse_integer("0"), 0);
  EXPECT_EQ(parse_integer("-17"), -17);
  EXPECT_EQ(parse_integer("9223372036854775807"), std::numeric_limits<std::int64_t>::max());
  for (const char* text : {"", " 1", "1 ", "+1", "1.0", "0x1", "1e3", "9223372036854775808", "-"}) {
    EXPECT_EQ(parse_integer(text), std::nullopt) << text;
  }
}

TEST(Shortest, IsTheTextPeopleWrite) {
  EXPECT_EQ(shortest(0.1), "0.1");
  EXPECT_EQ(shortest(0.1f), "0.1");
  EXPECT_EQ(shortest(1.0), "1");
  EXPECT_EQ(shortest(-0.0), "-0");
  EXPECT_EQ(shortest(1e300), "1e+300");
  EXPECT_EQ(shortest(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(shortest(-std::numeric_limits<float>::infinity()), "-inf");
  EXPECT_EQ(shortest(-std::numeric_limits<double>::quiet_NaN()), "nan");
}

TEST(Shortest, ParsesBackToTheSameBits) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int i = 0; i < 100'000; ++i) {
    const auto wide = std::bit_cast<double>(random.bits());
    const auto narrow = std::bit_cast<float>(static_cast<std::uint32_t>(random.bits()));
    if (!std::isnan(wide)) {
      const double back = std::strtod(shortest(wide).c_str(), nullptr);
      ASSERT_EQ(std::bit_cast<std::uint64_t>(back), std::bit_cast<std::uint64_t>(wide));
    }
    if (!std::isnan(narrow)) {
      const float back = std::strtof(shortest(narrow).c_str(), nullptr);
      ASSERT_EQ(std::bit_cast<std::uint32_t>(back), std::bit_cast<std::uint32_t>(narrow));
    }
  }
  for (const double edge :
       {std::numeric_limits<double>::denorm_min(), std::numeric_limits<double>::min(),
        std::numeric_limits<double>::lowest()}) {
    EXPECT_EQ(std::strtod(shortest(edge).c_str(), nullptr), edge);
  }
}

TEST(JsonQuote, EscapesWhatJsonForbidsAndKeepsTheRest) {
  EXPECT_EQ(json_quote("a\"b\\c\n\t"), R"("a\"b\\c\n\t")");
  for (int byte = 0; byte < 128; ++byte) {
    const char c = static_cast<char>(byte);
    const std::string quoted = json_quote(std::string_view(&c, 1));
    char escape[8];
    std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(byte));
    const std::string expected = c == '"' || c == '\\'         ? std::string("\\") + c
                                 : c == '\n'                   ? "\\n"
                                 : c == '\t'                   ? "\\t"
                                 : byte < 0x20 || byte == 0x7F ? escape
                                                               : std::string(1, c);
    EXPECT_EQ(quoted, "\"" + expected + "\"") << byte;
  }
}

TEST(JsonQuote, KeepsUtf8OfEveryLength) {
  for (const char* text : {"\xC2\xA0", "\xC3\xA4", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEF\xBF\xBF",
                           "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_EQ(json_quote(text), "\"" + std::string(text) + "\"");
  }
}

TEST(JsonQuote, SpellsOutWhatSteersATerminal) {
  EXPECT_EQ(json_quote("\xC2\x80 \xC2\x9F"), R"("\u0080 \u009f")");
  EXPECT_EQ(json_quote("\xE2\x80\xAE"), R"("\u202e")");
}

TEST(JsonQuote, ReplacesEachByteThatIsNoUtf8) {
  const std::string replacement = "\xEF\xBF\xBD";
  for (int byte = 0x80; byte < 0x100; ++byte) {
    const char c = static_cast<char>(byte);
    EXPECT_EQ(json_quote(std::string_view(&c, 1)), "\"" + replacement + "\"") << byte;
    EXPECT_EQ(json_quote(std::string{c, 'x'}), "\"" + replacement + "x\"") << byte;
  }
  // Overlong, surrogate, beyond U+10FFFF, cut off.
  EXPECT_EQ(json_quote("\xC0\x80"), "\"" + replacement + replacement + "\"");
  EXPECT_EQ(json_quote("\xE0\x9F\xBF"), "\"" + replacement + replacement + replacement + "\"");
  EXPECT_EQ(json_quote("\xED\xA0\x80"), "\"" + replacement + replacement + replacement + "\"");
  EXPECT_EQ(json_quote("\xF4\x90\x80\x80").size(), 2 + 4 * replacement.size());
  EXPECT_EQ(json_quote("\xE2\x82"), "\"" + replacement + replacement + "\"");
}

TEST(Nearest, IsTheCandidateWithTheFewestEdits) {
  const std::vector<std::string> names = {"gpipe", "1f1b", "interleaved"};
  EXPECT_EQ(nearest("gpip", names), "gpipe");
  EXPECT_EQ(nearest("GPIPE", names), "gpipe");
  EXPECT_EQ(nearest("1f1", names), "1f1b");
  EXPECT_EQ(nearest("interleeved", names), "interleaved");
  EXPECT_EQ(nearest("zero", names), std::nullopt);
  EXPECT_EQ(nearest("gpipe", {}), std::nullopt);
}

TEST(Nearest, TakesTheFirstOfEquallyNearOnes) {
  EXPECT_EQ(nearest("ac", {"ab", "ad"}), "ab");
  EXPECT_EQ(nearest("ad", {"ab", "ad"}), "ad");
}

TEST(DidYouMean, IsEmptyWhenNothingIsNear) {
  EXPECT_EQ(did_you_mean("gpip", {"gpipe"}), "; did you mean \"gpipe\"?");
  EXPECT_EQ(did_you_mean("zero", {"gpipe"}), "");
}

TEST(StableHash, IsFnv1aOfTheBytes) {
  EXPECT_EQ(stable_hash(""), 0xCBF29CE484222325u);
  EXPECT_EQ(stable_hash("a"), 0xAF63DC4C8601EC8Cu);
  EXPECT_EQ(stable_hash("foobar"), 0x85944171F73967E8u);
  EXPECT_NE(stable_hash(std::string_view("\0", 1)), stable_hash(""));
}

TEST(Mix, IsSplitmix64) {
  // First outputs of splitmix64 seeded with 0: mix of the state before each step.
  EXPECT_EQ(mix(0), 0xE220A8397B1DCDAFu);
  EXPECT_EQ(mix(0x9E3779B97F4A7C15u), 0x6E789E6AA1B965F4u);
  EXPECT_EQ(mix(2 * 0x9E3779B97F4A7C15u), 0x06C45D188009454Fu);
}

}  // namespace
}  // namespace penstock
