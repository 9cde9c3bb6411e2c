// Text to tokens and back by a folder's tokenizer, which Python has.
//
// `penstock generate` asks it, and ranks that write texts on the way: penstock.tokenize.text in
// python3, or in the Python that PENSTOCK_PYTHON names, which imports nothing from the working
// folder.  A Python that does not answer is killed after kTokenizerSeconds.  Knows no model.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace penstock::cli {

inline constexpr int kTokenizerSeconds = 120;

// Tokens of a text, with what the tokenizer adds, such as a token that begins it.  `without_python`
// is what a user can do instead, for the error: "give tokens by their numbers".
// Throws: ConfigError where Python, its packages or the tokenizer are not there; they have said
// why.
std::vector<std::int64_t> tokens_of(const std::string& text, const std::string& folder,
                                    const std::string& without_python);

// Tokens of a chat in which a user has said `text`, up to where the answer begins, by the chat
// template of the folder, which takes the package transformers.  Throws: as tokens_of().
std::vector<std::int64_t> chat_tokens_of(const std::string& text, const std::string& folder,
                                         const std::string& without_python);

// Text of tokens, without those that are no text.  Throws: as tokens_of().
std::string text_of(const std::vector<std::int64_t>& tokens, const std::string& folder,
                    const std::string& without_python);

}  // namespace penstock::cli
