// Finds the tokenizer that made token files, by the notes beside them, and says whether it is the
// model's.
//
// Tokens of another tokenizer are numbers that the model takes for other words: it trains, and its
// losses look like losses.  Files without a note are taken on trust.  Knows no ranks.
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace penstock::data {

class TokenSource;

struct Tokenizer {
  std::string name;  // Name for people: of its folder, or of the file that it made.
  std::string hash;  // The SHA-256 of its tokenizer.json; or what another program wrote there.
};

// The tokenizer of a model's folder; absent: there is no tokenizer.json.
// Throws: ConfigError for a file that cannot be read.
std::optional<Tokenizer> tokenizer_of(const std::string& folder);

// Throws: ConfigError for sources that different tokenizers have made, and for ones that another
// one has made than the model's; it names both.  What is no SHA-256 is not compared with that.
void require_one_tokenizer(const std::vector<const TokenSource*>& sources,
                           const std::optional<Tokenizer>& of_model);

}  // namespace penstock::data
