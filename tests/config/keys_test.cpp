#include "penstock/plan/config/keys.h"

#include <gtest/gtest.h>

#include <set>

#include "penstock/config/read.h"
#include "penstock/core/text.h"
#include "tests/support/message_of.h"

namespace penstock::config {
namespace {

using testing_support::message_of;

// {"optimizer": {"params": {"lr": 1}}} for {"optimizer", "params", "lr"}.
std::string nested(const std::vector<std::string>& keys) {
  std::string text;
  for (const std::string& key : keys) text += "{" + json_quote(key) + ": ";
  return text + "1" + std::string(keys.size(), '}');
}

// One-letter mistakes: a letter doubled, dropped or replaced.
std::set<std::string> misspellings(const std::string& word) {
  std::set<std::string> words;
  for (std::size_t i = 0; i < word.size(); ++i) {
    words.insert(std::string(word).insert(i, 1, word[i]));
    if (word.size() > 3) words.insert(std::string(word).erase(i, 1));
    words.insert(std::string(word).replace(i, 1, "q"));
  }
  words.erase(word);
  return words;
}

std::set<std::string> keys_and_sections() {
  std::set<std::string> paths;
  for (const KeyInfo& key : known_keys()) {
    for (std::string path = key.path;; path.erase(path.rfind('.'))) {
      paths.insert(path);
      if (path.find('.') == std::string::npos) break;
    }
  }
  return paths;
}

TEST(KnownKeys, EveryMisspeltKeyIsRefusedWithTheRightOne) {
  for (const std::string& path : keys_and_sections()) {
    const std::vector<std::string> keys = split(path, '.');
    for (const std::string& wrong : misspellings(keys.back())) {
      const bool is_near_two = wrong.starts_with("schedule") || wrong == "f16";
      if (is_near_two && keys.size() == 1) continue;
      std::vector<std::string> misspelt = keys;
      misspelt.back() = wrong;
      const std::string message = message_of([&] { parse_config(nested(misspelt), "gpt.json"); });
      const std::string expected = str("did you mean ", json_quote(keys.back()), "?");
      EXPECT_NE(message.find("unknown key " + json_quote(wrong)), std::string::npos) << message;
      EXPECT_NE(message.find(expected), std::string::npos) << path << ": " << message;
    }
  }
}

TEST(KnownKeys, EveryMisspeltOverrideIsRefusedWithTheRightKey) {
  for (const std::string& path : keys_and_sections()) {
    const std::string wrong = path + path.back();
    EXPECT_EQ(unknown_path(path), "");
    EXPECT_EQ(unknown_path(wrong),
              str("unknown key ", json_quote(wrong), "; did you mean ", json_quote(path), "?"));
  }
}

TEST(KnownKeys, AreUniqueAndExplained) {
  std::set<std::string> paths;
  for (const KeyInfo& key : known_keys()) {
    EXPECT_TRUE(paths.insert(key.path).second) << key.path;
    EXPECT_FALSE(key.type.empty()) << key.path;
    EXPECT_FALSE(key.fallback.empty()) << key.path;
    EXPECT_FALSE(key.meaning.empty()) << key.path;
  }
}

TEST(KnownKeys, DescribeTypeDefaultAndCondition) {
  const auto find = [](const std::string& path) {
    for (const KeyInfo& key : known_keys()) {
      if (key.path == path) return str(key.type, " | ", key.fallback, " | ", key.only_for);
    }
    return std::string("none");
  };
  EXPECT_EQ(find("model.type"), "\"gpt\", \"mlp\" or \"hugging_face\" | \"gpt\" | ");
  EXPECT_EQ(find("mesh.data"), "an integer, in [1, 65536] | null | ");
  EXPECT_EQ(find("mesh.tensor"), "an integer, in [1, 65536] | 1 | ");
  EXPECT_EQ(find("optimizer.params.betas"),
            "a list of 2 numbers, each in [0, 1) | [0.9, 0.999] | optimizer.type \"AdamW\" or "
            "\"Adam\"");
}

}  // namespace
}  // namespace penstock::config
