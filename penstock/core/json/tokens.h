// Finds the beginnings and ends of a JSON text's tokens, and says what is wrong with one.
//
// nlohmann's SAX interface tells what it read but not where; tree.cpp walks the same text with
// these.  They rely on the library having accepted the text so far and check no grammar themselves.
// Units: byte offsets from 0.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace penstock::json {

// What stands between two tokens: white space, comments, commas, colons.
struct Gap {
  std::size_t end = 0;               // Start of the next token, or the size of the text.
  std::optional<std::size_t> comma;  // The last comma inside.
};
Gap skip_gap(std::string_view text, std::size_t begin);

// The place one past the last byte of the token that starts at `begin`.
std::size_t token_end(std::string_view text, std::size_t begin);

struct SyntaxError {
  std::size_t offset = 0;
  std::string text;
};
// What the library's `message` means, in the words and at the place that help a human.
// `previous_end` is the end of the last good token, `read` the number of bytes the library has
// read.
SyntaxError describe_syntax_error(std::string_view text, std::size_t previous_end, std::size_t read,
                                  std::string_view message);

}  // namespace penstock::json
