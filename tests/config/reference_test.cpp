// docs/configuration.md against the tables of keys: it lists every key as known_keys() has it.
//
// PENSTOCK_UPDATE_GOLDEN=1 (`make golden`) rewrites the page's tables.
#include <gtest/gtest.h>

#include "penstock/core/text.h"
#include "penstock/plan/config/keys.h"
#include "tests/support/golden.h"

namespace penstock::config {
namespace {

constexpr std::string_view kHeadOfTrain =
    "| key | value | default | has an effect with | meaning |\n|---|---|---|---|---|\n";
constexpr std::string_view kHeadOfInitialize =
    "| key of `penstock.initialize` | value | default | has an effect with | meaning |\n"
    "|---|---|---|---|---|\n";

// A cell ends at a bar.
std::string cell(const std::string& text) { return join(split(text, '|'), "\\|"); }

std::string table_of(Dialect dialect, std::string_view head) {
  std::string table(head);
  for (const KeyInfo& key : known_keys(dialect)) {
    const std::string only = key.only_for.empty() ? "" : str("; only with ", cell(key.only_for));
    // An argument's default is its class's.
    const bool is_argument =
        dialect == Dialect::Initialize && key.path.find(".params.") != std::string::npos;
    const std::string fallback = is_argument ? "" : str("`", cell(key.fallback), "`");
    table += str("| `", key.path, "` | ", cell(key.type), " | ", fallback, " | ", cell(key.needs),
                 " | ", cell(key.meaning), only, " |\n");
  }
  return table;
}

void expect_table(Dialect dialect, std::string_view head) {
  testing_support::expect_table("docs/configuration.md", table_of(dialect, head));
}

TEST(ConfigurationPage, ListsEveryKeyWithItsDefaultConditionAndMeaning) {
  expect_table(Dialect::Train, kHeadOfTrain);
}

TEST(ConfigurationPage, ListsEveryKeyOfInitialize) {
  expect_table(Dialect::Initialize, kHeadOfInitialize);
}

}  // namespace
}  // namespace penstock::config
