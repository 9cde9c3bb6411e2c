// What lies in place of a file that was not fetched whole: a pointer of Git LFS, a page of HTML.
//
// Readers of weights and of JSON say it instead of what breaks their grammar.  Knows no grammar.
#pragma once
#include <string_view>

namespace penstock {

// "it is a pointer of Git LFS, ...": of a file that begins so; empty for any other.
std::string_view stand_in(std::string_view beginning);

}  // namespace penstock
