// What a corpus file says of itself, in a small JSON file beside it: "PATH.bin.json" of "PATH.bin".
//
// `python -m penstock.tokenize` writes it last, when all tokens are there.  TokenFile compares it
// with the file, and the model's vocabulary with it.  docs/data.md lists the keys.  Knows no
// tokens.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::data {

struct CorpusNote {
  std::int64_t token_bytes = 2;             // 2 or 4.
  std::int64_t tokens = 0;                  // Tokens in the file.
  std::int64_t vocabulary = 0;              // All ids are below it.
  std::optional<std::int64_t> end_of_text;  // The id that ends each document.
  std::string tokenizer;                    // Its name, for people.
  std::string tokenizer_hash;  // Hash of its tokenizer.json: the same hash, the same tokenizer.
  bool masked = false;         // Whether PATH.bin.mask says which tokens count.
  std::optional<std::int64_t> sample_tokens = {};  // Tokens of each sample, where they are packed.
  std::vector<std::int64_t> answer_ends = {};      // Tokens with which the answers of chats end.

  friend bool operator==(const CorpusNote&, const CorpusNote&) = default;
};

inline constexpr std::int64_t kCorpusNoteVersion = 1;

std::string note_path(const std::string& path);
std::string mask_path(const std::string& path);

// `name` is what errors call the text.  Throws: ParseError, ConfigError.
CorpusNote parse_note(std::string_view text, const std::string& name);
// The note of the corpus file `path`; nothing: there is none.  Throws: as parse_note().
std::optional<CorpusNote> read_note(const std::string& path);

}  // namespace penstock::data
