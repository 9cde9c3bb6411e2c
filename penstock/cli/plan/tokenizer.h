// Text to tokens and back by a folder's tokenizer, which Python has.
//
// generate.cpp uses it: `python3 -m penstock.tokenize.text`, or the Python that PENSTOCK_PYTHON
// names.  Knows no model.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace penstock::cli {

// With what the tokenizer adds to a text, such as a token that begins it.
// Throws: ConfigError where Python, its packages or the tokenizer are not there; they have said
// why.
std::vector<std::int64_t> tokens_of(const std::string& text, const std::string& folder);

// Without tokens that are no text.  Throws: as tokens_of().
std::string text_of(const std::vector<std::int64_t>& tokens, const std::string& folder);

}  // namespace penstock::cli
