// Text from elsewhere as a terminal may have it: what would steer the terminal is spelt out.
//
// Error, Output and the standard streams' one writer pass all text through it, and json_quote()
// uses the same table.  Names of tensors, facts and keys may have any bytes.  Knows no terminal.
#pragma once
#include <string>
#include <string_view>

namespace penstock {

// "\u001b": how the first character of `text` is spelt out; empty where it is shown as it is.
// Control characters (C0, C1 and DEL), separators of lines and paragraphs, and characters that
// turn the direction of writing round are spelt out.
// REQUIRES: `text` begins with a UTF-8 sequence of `length` bytes.
std::string spelt_out(std::string_view text, std::size_t length);

// Line feeds and tabs stay; a byte that is no UTF-8 becomes U+FFFD.  In a JSON text all values stay
// the same.  Law: printable(printable(x)) == printable(x).
std::string printable(std::string_view text);

}  // namespace penstock
