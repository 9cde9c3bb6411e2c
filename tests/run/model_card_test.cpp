#include "penstock/runtime/run/model_card.h"

#include <gtest/gtest.h>

#include "penstock/hugging_face/folder.h"

namespace penstock::run {
namespace {

TEST(ModelCard, LicensesAreThoseOfTheHead) {
  EXPECT_EQ(license_lines("---\nlicense: mit\nlanguage: en\nlicense_name: x\n---\nlicense: no\n"),
            "license: mit\nlicense_name: x\n");
  EXPECT_EQ(license_lines("# A card\nlicense: no\n"), "");
  EXPECT_EQ(license_lines(""), "");
}

TEST(ModelCard, FilesKeepNoPathOfTheMachine) {
  using hugging_face::without_paths;
  EXPECT_EQ(without_paths(R"({"a": "/x/y", "name_or_path": "/data/model/", "b": 1})"),
            R"({"a": "/x/y", "name_or_path": "model", "b": 1})");
  EXPECT_EQ(without_paths(R"({"x_file": "/a/b.json", "_name_or_path": "/c"})"),
            R"({"x_file": "b.json", "_name_or_path": "c"})");
  for (const char* const text : {R"({"_name_or_path": "org/model", "x_file": null})", "[1]", "{"}) {
    EXPECT_EQ(without_paths(text), text);
  }
}

}  // namespace
}  // namespace penstock::run
