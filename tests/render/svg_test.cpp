#include "penstock/plan/render/svg.h"

#include <gtest/gtest.h>

#include "tests/render/svg_text.h"

namespace penstock::render {
namespace {

TEST(Svg, ElementsNestAndAreIndented) {
  Svg svg(20, 10.5, "a & b");
  svg.open("g", {{"fill", kBlue}});
  svg.add("rect", {{"x", 1.0}, {"y", 2.125}}, "tip <1>");
  svg.close();
  svg.text(3, 4, "x < y", {{"font-size", 12.0}});
  const std::string text = std::move(svg).finish();
  EXPECT_EQ(misplaced_tag(text), "");
  EXPECT_NE(text.find("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"20\" height=\"10.5\" "
                      "viewBox=\"0 0 20 10.5\" role=\"img\" aria-label=\"a &amp; b\""),
            std::string::npos);
  EXPECT_TRUE(
      text.ends_with("  <g fill=\"#0072b2\">\n"
                     "    <rect x=\"1\" y=\"2.12\"><title>tip &lt;1&gt;</title></rect>\n"
                     "  </g>\n"
                     "  <text x=\"3\" y=\"4\" font-size=\"12\">x &lt; y</text>\n"
                     "</svg>\n"))
      << text;
}

TEST(SvgDeathTest, AnElementLeftOpenIsABug) {
  Svg svg(1, 1, "");
  svg.open("g", {});
  EXPECT_DEATH(std::move(svg).finish(), "1 elements are still open");
}

TEST(XmlEscape, KeepsTextAndItsLetters) {
  EXPECT_EQ(xml_escape("<a href=\"b\">&</a>"), "&lt;a href=&quot;b&quot;&gt;&amp;&lt;/a&gt;");
  EXPECT_EQ(xml_escape("\xC3\xA9 \xE2\x80\xA6 \xF0\x9F\x98\x80"),
            "\xC3\xA9 \xE2\x80\xA6 \xF0\x9F\x98\x80");
}

TEST(XmlEscape, ReplacesWhatXmlHasNoCharacterFor) {
  constexpr std::string_view replacement = "\xEF\xBF\xBD";
  const auto times = [&](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += replacement;
    return text;
  };
  EXPECT_EQ(xml_escape("\x01"), times(1));
  EXPECT_EQ(xml_escape("\xFF"), times(1));
  EXPECT_EQ(xml_escape("\xC3"), times(1)) << "cut off";
  EXPECT_EQ(xml_escape("\xC0\x80"), times(2)) << "overlong";
  EXPECT_EQ(xml_escape("\xE0\x80\x80"), times(3)) << "overlong";
  EXPECT_EQ(xml_escape("\xED\xA0\x80"), times(3)) << "surrogate";
  EXPECT_EQ(xml_escape("\xEF\xBF\xBF"), times(3)) << "U+FFFF";
  EXPECT_EQ(xml_escape("\xF4\x90\x80\x80"), times(4)) << "above U+10FFFF";
}

TEST(Wrapped, BreaksAtSpacesAndLosesNothing) {
  const std::vector<std::string> lines = wrapped("one two three four five", 10, 60);
  ASSERT_GT(lines.size(), 1u);
  std::string together = lines[0];
  for (std::size_t i = 1; i < lines.size(); ++i) together += ' ' + lines[i];
  EXPECT_EQ(together, "one two three four five");
  for (const std::string& line : lines) EXPECT_LE(text_width(line, 10), 60) << line;
}

TEST(Wrapped, AWordThatIsTooLongStandsAlone) {
  EXPECT_EQ(wrapped("a bbbbbbbbbbbbbbbbbbbb c", 10, 20),
            (std::vector<std::string>{"a", "bbbbbbbbbbbbbbbbbbbb", "c"}));
}

TEST(Elided, CutsBetweenCharactersOnly) {
  EXPECT_EQ(elided("short", 10, 100), "short");
  const std::string cut = elided("\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9", 10, 30);
  EXPECT_EQ(xml_escape(cut), cut);
  EXPECT_TRUE(cut.starts_with("\xC3\xA9")) << cut;
  EXPECT_TRUE(cut.ends_with("\xE2\x80\xA6")) << cut;
  EXPECT_EQ(elided("anything", 10, 0), "\xE2\x80\xA6");
}

}  // namespace
}  // namespace penstock::render
