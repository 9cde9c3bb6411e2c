#include "penstock/files/data/tokenizers.h"

#include <filesystem>
#include <map>

#include "penstock/core/error.h"
#include "penstock/core/read_file.h"
#include "penstock/core/sha256.h"
#include "penstock/core/text.h"
#include "penstock/files/data/token_source.h"

namespace penstock::data {
namespace {

constexpr std::size_t kFileBytesMax = std::size_t{1} << 28;

std::string described(const Tokenizer& tokenizer) {
  constexpr std::size_t kDigits = 8;
  return str(in_quotes(tokenizer.name), " (", tokenizer.hash.substr(0, kDigits), ")");
}

}  // namespace

std::optional<Tokenizer> tokenizer_of(const std::string& folder) {
  const std::string path = folder + "/tokenizer.json";
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return std::nullopt;
  return Tokenizer{.name = folder, .hash = sha256(read_file("a tokenizer", path, kFileBytesMax))};
}

void require_one_tokenizer(const std::vector<const TokenSource*>& sources,
                           const std::optional<Tokenizer>& of_model) {
  const TokenSource* first = nullptr;
  std::optional<Tokenizer> known = of_model;
  for (const TokenSource* source : sources) {
    for (const Tokenizer& each : source->tokenizers()) {
      if (!known) {
        known = each;
        first = source;
      }
      if (each.hash == known->hash || (of_model && !is_sha256(each.hash))) continue;
      const std::string other = first == nullptr
                                    ? str("the model in ", quoted_path(known->name),
                                          " has another tokenizer (", known->hash.substr(0, 8), ")")
                                    : str("those of ", quoted_path(first->path()),
                                          " by the tokenizer ", described(*known));
      throw ConfigError(
          str("tokens of ", quoted_path(source->path()), " were made by the tokenizer ",
              described(each), ", and ", other),
          {"make the token files with the model's tokenizer: python -m penstock.tokenize "
           "--tokenizer FOLDER",
           "the note beside a token file names the SHA-256 of its tokenizer.json; anything else "
           "there says that nobody knows it"});
    }
  }
}

}  // namespace penstock::data
