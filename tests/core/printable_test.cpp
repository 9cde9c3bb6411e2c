#include "penstock/core/printable.h"

#include <gtest/gtest.h>

#include <string>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock {
namespace {

TEST(Printable, TextStays) {
  const std::string text = "a\tb\nWeights für 重み, العربية, \"quotes\" \\u001b 🙂";
  EXPECT_EQ(printable(text), text);
}

TEST(Printable, WhatSteersATerminalIsSpeltOut) {
  EXPECT_EQ(printable("\x1b]0;title\x07"), "\\u001b]0;title\\u0007");
  EXPECT_EQ(printable("over\rwritten\x08\x7f"), "over\\u000dwritten\\u0008\\u007f");
  EXPECT_EQ(printable("\xC2\x9B"
                      "31m"),
            "\\u009b31m");  // CSI of C1.
  EXPECT_EQ(printable("a\u202Eb\u2066c\u2028"), "a\\u202eb\\u2066c\\u2028");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\u0000");
  EXPECT_EQ(printable("\x9B"
                      "31m \xFF"),
            "\xEF\xBF\xBD"
            "31m \xEF\xBF\xBD");  // No UTF-8.
}

// Every sequence of two bytes, and every character of three.
TEST(Printable, NothingIsLeftThatSteers) {
  const auto expect_harmless = [](const std::string& text) {
    const std::string shown = printable(text);
    EXPECT_EQ(printable(shown), shown);
    for (const char c : shown) {
      EXPECT_TRUE(c == '\n' || c == '\t' || static_cast<unsigned char>(c) >= 0x20)
          << json_quote(text);
    }
    EXPECT_EQ(shown.find("\xC2\x9B"), std::string::npos);
  };
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      expect_harmless({static_cast<char>(first), static_cast<char>(second)});
    }
  }
}

TEST(Printable, AJsonTextKeepsItsValues) {
  const std::string value = "\x1b[31m \u202E \xC2\x85 \"x\"\n";
  EXPECT_EQ(json_quote(value), "\"\\u001b[31m \\u202e \\u0085 \\\"x\\\"\\n\"");
  EXPECT_EQ(printable(json_quote(value)), json_quote(value));
}

TEST(Printable, ErrorsAreMadeSo) {
  const ConfigError error("tensor \x1b[2J is missing", {"named by \xC2\x9Bm"});
  EXPECT_EQ(std::string(error.what()), "tensor \\u001b[2J is missing\n  note: named by \\u009bm");
  EXPECT_EQ(error.message(), "tensor \\u001b[2J is missing");
  EXPECT_EQ(error.notes().front(), "named by \\u009bm");
}

}  // namespace
}  // namespace penstock
