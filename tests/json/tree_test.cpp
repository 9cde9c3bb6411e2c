#include "penstock/core/json/tree.h"

#include <gtest/gtest.h>

#include "penstock/core/text.h"
#include "tests/support/message_of.h"

namespace penstock::json {
namespace {

using testing_support::message_of;

Value parse(std::string text) {
  return json::parse(
      std::make_shared<const Source>(Source{.name = "c.json", .text = std::move(text)}));
}

std::string refusal(const std::string& text) {
  return message_of([&] { parse(text); });
}

// Each key and each scalar with its place, in the order of the text.
std::string places(const Value& value) {
  if (const auto* object = std::get_if<Value::Object>(&value.data)) {
    std::string text = str(to_string(origin_of(value)), " {\n");
    for (const Member& member : *object) {
      text += str(to_string(origin_of_key(member)), " ", member.key, "\n", places(member.value));
    }
    return text + "}\n";
  }
  if (const auto* array = std::get_if<Value::Array>(&value.data)) {
    std::string text = str(to_string(origin_of(value)), " [\n");
    for (const Value& element : *array) text += places(element);
    return text + "]\n";
  }
  return str(to_string(origin_of(value)), " ", text_of(value), "\n");
}

TEST(JsonTree, EveryKeyAndValueKnowsItsPlace) {
  EXPECT_EQ(places(parse("{ \"a\" : 12,\n"
                         "  \"b\":[true,null , -1.5e3],\n"
                         "  \"c\": {}, \"d\": {\"e\": \"x\"}\n"
                         "}\n")),
            "c.json:1:1 {\n"
            "c.json:1:3 a\n"
            "c.json:1:9 12\n"
            "c.json:2:3 b\n"
            "c.json:2:7 [\n"
            "c.json:2:8 true\n"
            "c.json:2:13 null\n"
            "c.json:2:20 -1.5e3\n"
            "]\n"
            "c.json:3:3 c\n"
            "c.json:3:8 {\n"
            "}\n"
            "c.json:3:12 d\n"
            "c.json:3:17 {\n"
            "c.json:3:18 e\n"
            "c.json:3:23 \"x\"\n"
            "}\n"
            "}\n");
}

TEST(JsonTree, CommentsAreSkipped) {
  EXPECT_EQ(places(parse("// one, \"two\": 3\n"
                         "[ /* , [ */ 1 /**/,// x\r\n"
                         "2/* * / **/ ] // end")),
            "c.json:2:1 [\n"
            "c.json:2:13 1\n"
            "c.json:3:1 2\n"
            "]\n");
}

TEST(JsonTree, ColumnsCountCharactersAndSkipEscapes) {
  EXPECT_EQ(places(parse("{\"\xC3\xA9\xE2\x82\xAC\": \"\\\"\\\\\", \"b\": 1}")),
            "c.json:1:1 {\n"
            "c.json:1:2 \xC3\xA9\xE2\x82\xAC\n"
            "c.json:1:8 \"\\\"\\\\\"\n"
            "c.json:1:16 b\n"
            "c.json:1:21 1\n"
            "}\n");
}

TEST(JsonTree, AWholeTextMayBeAScalar) {
  EXPECT_EQ(std::get<std::int64_t>(parse("-9223372036854775808").data), INT64_MIN);
  EXPECT_EQ(std::get<double>(parse(" 18446744073709551615 ").data), 18446744073709551615.0);
  EXPECT_EQ(std::get<std::string>(parse("\"\\ud83d\\ude00\"").data), "\xF0\x9F\x98\x80");
  EXPECT_TRUE(parse("null").is_null());
}

struct Malformed {
  std::string text;
  std::string message;
};

class MalformedJson : public testing::TestWithParam<Malformed> {};

TEST_P(MalformedJson, IsRefusedAtItsPlace) {
  EXPECT_EQ(refusal(GetParam().text), "c.json:" + GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    All, MalformedJson,
    testing::Values(
        Malformed{"{\"a\": 1,\n}", "1:8: trailing comma: nothing follows before the '}'"},
        Malformed{"[1, /* x */ ]", "1:3: trailing comma: nothing follows before the ']'"},
        Malformed{"{\"a\": 1,,}", "1:9: unexpected ','; expected string literal"},
        Malformed{"{\"a\": NaN}", "1:7: JSON has no number NaN"},
        Malformed{"{\"a\":\n -Infinity}", "2:2: JSON has no number -Infinity"},
        Malformed{"[+1]", "1:2: not a JSON number: +1"},
        Malformed{"[.5]", "1:2: not a JSON number: .5"},
        Malformed{"[1.]", "1:2: not a JSON number: 1."},
        Malformed{"[01]", "1:3: unexpected number literal; expected ',' or ']'"},
        Malformed{"[1e999]", "1:2: number 1e999 is too large for a double"},
        Malformed{"{\"a\": True}", "1:7: unexpected \"True\"; did you mean \"true\"?"},
        Malformed{"{\"a\": gpt}", "1:7: unexpected \"gpt\"; a string takes double quotes"},
        Malformed{"{'a': 1}", "1:2: a string takes double quotes"},
        Malformed{"{a: 1}", "1:2: a key takes double quotes: \"a\""},
        Malformed{"{\"a\" 1}", "1:6: unexpected number literal; expected ':'"},
        Malformed{"{\"a\": 1\n \"b\": 2}", "2:2: unexpected string literal; expected ',' or '}'"},
        Malformed{"[1 2]", "1:4: unexpected number literal; expected ',' or ']'"},
        Malformed{"{\"a\": 1", "1:8: unexpected end of input; expected ',' or '}'"},
        Malformed{"{\"a\": \"x", "1:9: invalid string: missing closing quote"},
        Malformed{"[\"\\q\"]", "1:4: invalid string: forbidden character after backslash"},
        Malformed{"[\"a\xFF\"]", "1:4: invalid string: ill-formed UTF-8 byte"},
        Malformed{"{} {}", "1:4: unexpected '{'; expected end of input"},
        Malformed{" \n ", "1:1: the text is empty; expected an object such as {\"seed\": 1}"},
        Malformed{"[1] /* x", "1:5: invalid comment; missing closing '*/'"},
        Malformed{"[1 / 2]", "1:4: invalid comment; expecting '/' or '*' after '/'"},
        Malformed{"{\"a\": 1,\n \"b\": 2,\n \"a\": 3}", "3:2: duplicate key \"a\""},
        Malformed{"\xEF\xBB\xBF{}",
                  "1:1: the file starts with a byte order mark; save it as UTF-8 without one"},
        Malformed{std::string("{}\n\0{", 5), "2:1: a NUL byte: this is not a text file"},
        Malformed{std::string(kDepthMax + 1, '['), "1:65: nested deeper than 64"}));

TEST(JsonTree, NestingUpToTheLimitIsRead) {
  EXPECT_NO_THROW(parse(std::string(kDepthMax, '[') + std::string(kDepthMax, ']')));
}

TEST(JsonTree, TextsUpToTheLimitAreRead) {
  const std::string text = "[" + std::string(kBytesMax - 2, ' ') + "]";
  EXPECT_NO_THROW(parse(text));
  EXPECT_EQ(refusal(text + " "), "c.json: larger than 1048576 bytes; is it the right file?");
}

TEST(JsonTree, LongTextsAreCutInErrors) {
  const std::string key(1000, 'k');
  EXPECT_LT(refusal("{\"" + key + "\": 1, \"" + key + "\": 2}").size(), 150u);
  EXPECT_LT(refusal("[" + key + "]").size(), 150u);
}

// Whatever stands after a good prefix, and whatever byte is changed, the outcome is a tree or an
// Error.
TEST(JsonTree, DamagedTextsNeverCrash) {
  const std::string good =
      "{\"a\": [1, 2.5e-3, \"\\u00e9\\n\", {}], // c\n \"b\": {\"c\": null, /* d */ \"e\": true}}";
  const std::string bytes("\0\n\"'/*,:[]{}\\\x80\xFFNe-+.1u", 22);
  for (std::size_t i = 0; i < good.size(); ++i) {
    refusal(good.substr(0, i));
    refusal(good.substr(i));
    for (const char byte : bytes) {
      refusal(std::string(good).replace(i, 1, 1, byte));
      refusal(std::string(good).insert(i, 1, byte));
    }
  }
}

}  // namespace
}  // namespace penstock::json
