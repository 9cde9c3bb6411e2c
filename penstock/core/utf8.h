// Bytes as UTF-8: where a character ends, and what makes them no text at all.
//
// Those who read or print texts that a user wrote use it.  Knows no grammar.
#pragma once
#include <cstddef>
#include <optional>
#include <string_view>

namespace penstock {

// The length of the UTF-8 sequence at the start of `text`, or 0 when there is no valid one.
// REQUIRES: `text` is not empty.
std::size_t utf8_length(std::string_view text);
bool is_utf8(std::string_view text);

struct NoText {
  std::size_t offset = 0;  // Bytes from the beginning.
  std::string_view why;
};

// The first thing that no text file of ours has, though its grammar may not see it: a byte order
// mark, a NUL byte.
std::optional<NoText> find_no_text(std::string_view bytes);

}  // namespace penstock
