// A hash of a text of any length, by which ranks see that what they have read is not the same.
//
// As fast as memory.  A change of 8 bytes that are together is always seen; of others, all but one
// in 2^64.  Not for adversaries.  Law: the same bytes give the same text on every machine.
#pragma once
#include <string>
#include <string_view>

namespace penstock {

// Returns 16 hexadecimal digits.
std::string content_hash(std::string_view bytes);

}  // namespace penstock
