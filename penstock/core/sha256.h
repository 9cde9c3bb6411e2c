// SHA-256, by which files of other programs are named: a tokenizer in a corpus's note, for example.
//
// content_hash() is faster, for what only penstock compares.  Law: sha256("abc") begins "ba7816bf".
// Source: FIPS 180-4.
#pragma once
#include <string>
#include <string_view>

namespace penstock {

// Returns 64 hexadecimal digits.
std::string sha256(std::string_view bytes);

// Whether a text has the form of one: 64 digits of base 16, in lower case.
inline bool is_sha256(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace penstock
