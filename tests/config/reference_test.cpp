// docs/configuration.md against the table of keys: the page lists every key as known_keys() has it.
//
// PENSTOCK_UPDATE_GOLDEN=1 (`make golden`) rewrites the page's table.
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
constexpr std::string_view kHead = "| key | value | default | meaning |\n|---|---|---|---|\n";

// A cell ends at a bar.
std::string cell(const std::string& text) { return join(split(text, '|'), "\\|"); }

std::string expected_table() {
  std::string table(kHead);
  for (const KeyInfo& key : known_keys()) {
    const std::string only = key.only_for.empty() ? "" : str("; only with ", cell(key.only_for));
    table += str("| `", key.path, "` | ", cell(key.type), " | `", cell(key.fallback), "` | ",
                 cell(key.meaning), only, " |\n");
  }
  return table;
}

// The page in three parts, the table being the second: empty when there is none.
std::vector<std::string> parts_of(const std::string& page) {
  const std::size_t begin = page.find(kHead);
  if (begin == std::string::npos) return {page, "", ""};
  const std::size_t end = page.find("\n\n", begin) + 1;
  return {page.substr(0, begin), page.substr(begin, end - begin), page.substr(end)};
}

TEST(ConfigurationPage, ListsEveryKeyWithItsDefaultAndMeaning) {
  const std::string expected = expected_table();
  std::vector<std::string> parts = parts_of(read_source_file(kPage));
  ASSERT_NE(parts[1], "") << kPage << " has no table that begins\n" << kHead;
  if (std::getenv("PENSTOCK_UPDATE_GOLDEN") != nullptr) {
    parts[1] = expected;
    std::ofstream(std::string(PENSTOCK_SOURCE_DIR) + "/" + kPage) << join(parts, "");
  }
  EXPECT_EQ(parts_of(read_source_file(kPage))[1], expected)
      << "if this is meant, `make golden` rewrites the table of " << kPage;
}

}  // namespace
}  // namespace penstock::config
