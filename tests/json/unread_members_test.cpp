#include "penstock/core/json/unread_members.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>

namespace penstock::json {
namespace {

constexpr auto kTable = std::to_array<PassedOver>({
    {"name", "is for people"},
    {"mark_*", "is of a tool"},
    {"scale", "is not applied", "1|true|\"none\""},
});

// The keys that are told, with what is said of the last.
std::string told(const std::string& text) {
  const Value value = parse(std::make_shared<Source>(Source{.name = "file", .text = text}));
  std::string all;
  for (const auto& [member, why] :
       unread_members(std::get<Value::Object>(value.data), {"rank"}, kTable)) {
    all += member->key + ": " + why + ";";
  }
  return all;
}

const std::string kUnknown = ": penstock does not know this key, and it may change results";

TEST(UnreadMembers, WhatIsReadOrPassedOverIsNotTold) {
  EXPECT_EQ(told(R"({"rank": 3, "name": "x", "mark_a": [1], "mark_": 0})"), "");
}

TEST(UnreadMembers, WhatIsNotSetIsNotTold) {
  EXPECT_EQ(told(R"({"a": null, "b": false, "c": "", "d": [], "e": {}, "scale": null})"), "");
}

TEST(UnreadMembers, EveryOtherValueIsTold) {
  for (const char* const value :
       {"true", "0", "1", "-0.5", "\"x\"", "[0]", "[null]", "{\"x\": 0}"}) {
    EXPECT_EQ(told(std::string("{\"pattern\": ") + value + "}"), "pattern" + kUnknown + ";");
  }
  EXPECT_EQ(told(R"({"ranks": 3})"), "ranks" + kUnknown + "; did you mean \"rank\"?;");
}

TEST(UnreadMembers, ARowMayPassOverSomeValuesAlone) {
  for (const char* const value : {"1", "1.0", "1e0", "true", "\"none\""}) {
    EXPECT_EQ(told(std::string("{\"scale\": ") + value + "}"), "") << value;
  }
  for (const char* const value : {"2", "false", "\"1\"", "\"all\"", "[]"}) {
    EXPECT_EQ(told(std::string("{\"scale\": ") + value + "}"), "scale: is not applied;") << value;
  }
}

}  // namespace
}  // namespace penstock::json
