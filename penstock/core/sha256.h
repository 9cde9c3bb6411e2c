// SHA-256, by which files of other programs are named: a tokenizer in a corpus's note, for example.
//
// content_hash() is faster, for what only penstock compares.  Law: sha256("abc") begins "ba7816bf".
// Source: FIPS 180-4.
#pragma once
#include <string>
#include <string_view>

namespace penstock {

// As 64 hexadecimal digits.
std::string sha256(std::string_view bytes);

}  // namespace penstock
