// Rows of texts as aligned columns.
//
// What commands print for people goes through it.  Knows no meaning.
#pragma once
#include <string>
#include <vector>

namespace penstock::cli {

using TextRow = std::vector<std::string>;

// A line per row, columns two blanks apart; the first and the last to the left, others to the
// right. Trailing blanks are left out.
std::string text_table(const std::vector<TextRow>& rows);

}  // namespace penstock::cli
