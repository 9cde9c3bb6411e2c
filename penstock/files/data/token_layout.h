// The place of a file's tokens, as its header, its index or its side file says it.
//
// TokenFile reads tokens by it.  All that is said is checked against the files' sizes here: a
// reader of tokens has only the tokens to check.  Knows no vocabulary.
// Units: bytes, unless it says tokens.  Numbers are little-endian.
// Source of the formats: nanoGPT's data/*/prepare.py (plain tokens); llm.c's data_common.py (256
// int32 of header: magic, version, number of tokens); Megatron-LM's indexed_dataset.py (an index of
// sequences and documents beside the tokens).
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "penstock/files/data/corpus_note.h"
#include "penstock/files/data/data_file.h"

namespace penstock::data {

enum class TokenFormat : std::uint8_t {
  Uint16,    // Plain tokens: nanoGPT's, and the tokenizer tool's.
  Uint32,    // Plain tokens of larger vocabularies.
  LlmC,      // Tokens behind llm.c's header.
  Megatron,  // PATH.bin beside PATH.idx.
};

enum class TokenType : std::uint8_t { Uint8, Int8, Int16, Int32, Int64, Uint16, Uint32 };
std::int64_t bytes_of(TokenType type);

struct TokenLayout {
  TokenType type = TokenType::Uint16;
  std::int64_t first_byte = 0;
  std::int64_t tokens = 0;

  friend bool operator==(const TokenLayout&, const TokenLayout&) = default;
};

// The layout of a file whose format is `format` or, if that is absent, what the file itself says.
// Throws: ConfigError, with file and byte offset, for a file that is not what its format needs, and
// where nothing says the format.
TokenLayout find_layout(const DataFile& file, std::optional<TokenFormat> format,
                        const std::optional<CorpusNote>& note);

// The parts of find_layout(), for one format each.
TokenLayout plain_layout(const DataFile& file, TokenType type);
TokenLayout llmc_layout(const DataFile& file);
// `index` is read once, in blocks: every sequence must begin where the one before ends, the last
// one with the end of `file`, and documents must be runs of sequences.
TokenLayout megatron_layout(const DataFile& file, const DataFile& index);

// "PATH.idx" for "PATH.bin".
std::string index_path(const std::string& path);

}  // namespace penstock::data
