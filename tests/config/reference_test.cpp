// docs/configuration.md against the tables of keys: it lists every key as known_keys() has it.
//
// PENSTOCK_UPDATE_GOLDEN=1 (`make golden`) rewrites the page's tables.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "penstock/config/keys.h"
#include "penstock/core/text.h"
#include "tests/support/golden.h"

namespace penstock::config {
namespace {

using testing_support::read_source_file;

constexpr const char* kPage = "docs/configuration.md";
constexpr std::string_view kHeadOfTrain =
    "| key | value | default | has an effect with | meaning |\n|---|---|---|---|---|\n";
constexpr std::string_view kHeadOfInitialize =
    "| key of `penstock.initialize` | value | has an effect with | meaning |\n|---|---|---|---|\n";

// A cell ends at a bar.
std::string cell(const std::string& text) { return join(split(text, '|'), "\\|"); }

std::string table_of(Taker taker, std::string_view head) {
  std::string table(head);
  for (const KeyInfo& key : known_keys(taker)) {
    const std::string only = key.only_for.empty() ? "" : str("; only with ", cell(key.only_for));
    const std::string fallback =
        taker == Taker::Train ? str(" | `", cell(key.fallback), "`") : std::string();
    table += str("| `", key.path, "` | ", cell(key.type), fallback, " | ", cell(key.needs), " | ",
                 cell(key.meaning), only, " |\n");
  }
  return table;
}

// The page in three parts, the table with that head being the second: empty when there is none.
std::vector<std::string> parts_of(const std::string& page, std::string_view head) {
  const std::size_t begin = page.find(head);
  if (begin == std::string::npos) return {page, "", ""};
  const std::size_t end = page.find("\n\n", begin) + 1;
  return {page.substr(0, begin), page.substr(begin, end - begin), page.substr(end)};
}

void expect_table(Taker taker, std::string_view head) {
  const std::string expected = table_of(taker, head);
  std::vector<std::string> parts = parts_of(read_source_file(kPage), head);
  ASSERT_NE(parts[1], "") << kPage << " has no table that begins\n" << head;
  if (std::getenv("PENSTOCK_UPDATE_GOLDEN") != nullptr) {
    parts[1] = expected;
    std::ofstream(std::string(PENSTOCK_SOURCE_DIR) + "/" + kPage) << join(parts, "");
  }
  EXPECT_EQ(parts_of(read_source_file(kPage), head)[1], expected)
      << "if this is meant, `make golden` rewrites the table of " << kPage;
}

TEST(ConfigurationPage, ListsEveryKeyWithItsDefaultConditionAndMeaning) {
  expect_table(Taker::Train, kHeadOfTrain);
}

TEST(ConfigurationPage, ListsEveryKeyOfInitialize) {
  expect_table(Taker::Initialize, kHeadOfInitialize);
}

}  // namespace
}  // namespace penstock::config
