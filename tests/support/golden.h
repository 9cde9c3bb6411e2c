// Expected texts in tests/golden/: reading them, comparing with them, rewriting them.
//
// PENSTOCK_UPDATE_GOLDEN=1 (`make golden`) rewrites the files that expect_golden() compares with,
// and the tables of pages; the difference is then reviewed in git.  Texts recorded from other
// systems are only read.
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "penstock/core/text.h"

namespace penstock::testing_support {

// A file of the source tree, by its path from the root; "" and a failure when it cannot be read.
inline std::string read_source_file(const std::string& path) {
  std::ifstream file(std::string(PENSTOCK_SOURCE_DIR) + "/" + path, std::ios::binary);
  if (!file) ADD_FAILURE() << "cannot read " << path;
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

// The lines of a recorded text, without comments (#) and empty lines.
inline std::vector<std::string> golden_lines(const std::string& name) {
  std::vector<std::string> lines;
  for (std::string& line : split(read_source_file("tests/golden/" + name), '\n')) {
    if (!line.empty() && line.front() != '#') lines.push_back(std::move(line));
  }
  return lines;
}

inline void expect_golden(const std::string& name, const std::string& actual) {
  if (std::getenv("PENSTOCK_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(std::string(PENSTOCK_SOURCE_DIR) + "/tests/golden/" + name) << actual;
  }
  EXPECT_EQ(read_source_file("tests/golden/" + name), actual)
      << "if this is meant, `make golden` rewrites tests/golden/" << name;
}

// Expects that the page has this table, which is found by its first two lines; rewritten as golden
// texts are.
inline void expect_table(const std::string& page, const std::string& table) {
  const std::string head = table.substr(0, table.find('\n', table.find('\n') + 1) + 1);
  std::string text = read_source_file(page);
  const std::size_t begin = text.find(head);
  ASSERT_NE(begin, text.npos) << page << " has no table that begins\n" << head;
  const std::size_t length = text.find("\n\n", begin) + 1 - begin;
  const std::string found = text.substr(begin, length);
  if (std::getenv("PENSTOCK_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(std::string(PENSTOCK_SOURCE_DIR) + "/" + page)
        << text.replace(begin, length, table);
    return;
  }
  EXPECT_EQ(found, table) << "if this is meant, `make golden` rewrites the table of " << page;
}

}  // namespace penstock::testing_support
