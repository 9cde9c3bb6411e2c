// Text to tokens and back by a folder's tokenizer, which Python has.
//
// Ranks that write texts on the way ask it, each time of a process of its own (python_helper.h).
// Knows no model.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace penstock::cli {

// Tokens of a text, with what the tokenizer adds, such as a token that begins it.  `without_python`
// is what a user can do instead, for the error: "give tokens by their numbers".
// Throws: ConfigError where Python, its packages or the tokenizer are not there; they have said
// why.
std::vector<std::int64_t> tokens_of(const std::string& text, const std::string& folder,
                                    const std::string& without_python);

// Text of tokens, without those that are no text.  Throws: as tokens_of().
std::string text_of(const std::vector<std::int64_t>& tokens, const std::string& folder,
                    const std::string& without_python);

}  // namespace penstock::cli
