#include "penstock/files/data/token_file.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <vector>

#include "penstock/core/check.h"
#include "penstock/core/content_hash.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::data {
namespace {

constexpr std::int64_t kBlocks = 128;  // Blocks of a fingerprint.
constexpr std::int64_t kBlockTokens = 1024;

// A mask that no note tells of: trained without it, all tokens would count.
void refuse_lone_mask(const std::string& path, const std::optional<CorpusNote>& note) {
  std::error_code ignored;
  if ((note && note->masked) || !std::filesystem::exists(mask_path(path), ignored)) return;
  throw ConfigError(
      str("token file ", quoted_path(path), ": has ", quoted_path(mask_path(path)), " beside it, ",
          note ? str("and ", quoted_path(note_path(path)), " says masked = false")
               : str("and no ", quoted_path(note_path(path)), ", which says what it means")),
      {"a corpus is these files together: copy the note, too, or remove the mask where all tokens "
       "count"});
}

DataFile open_mask(const std::string& path, std::int64_t tokens) {
  std::error_code ignored;
  if (!std::filesystem::exists(mask_path(path), ignored)) {
    throw ConfigError(
        str("token file ", quoted_path(path), ": ", quoted_path(note_path(path)),
            " says masked = true, and ", quoted_path(mask_path(path)), " is not there"),
        {"a corpus is these files together: copy the mask, too; it says which tokens "
         "count"});
  }
  DataFile mask(mask_path(path));
  const std::int64_t bytes = (tokens + 7) / 8;
  if (mask.size() != bytes) {
    mask.refuse(std::min(mask.size(), bytes),
                str("has ", mask.size(), " bytes; a mask of ", tokens, " tokens has ", bytes));
  }
  return mask;
}

}  // namespace

TokenFile::TokenFile(const std::string& path, std::optional<TokenFormat> format,
                     std::int64_t vocabulary)
    : file_(path),
      vocabulary_(vocabulary),
      note_(read_note(path)),
      layout_(find_layout(file_, format, note_)) {
  if (note_ && note_->vocabulary > vocabulary) {
    throw ConfigError(
        str("token file ", quoted_path(path), ": its tokenizer ", in_quotes(note_->tokenizer),
            " has a vocabulary of ", note_->vocabulary, ", and the model one of ", vocabulary),
        {str("set model.vocabulary to ", note_->vocabulary,
             " or more, or make the file with the model's tokenizer")});
  }
  refuse_lone_mask(path, note_);
  if (note_ && note_->masked) mask_ = open_mask(path, layout_.tokens);
}

template <class T>
void TokenFile::decode(std::int64_t first, std::span<std::int64_t> out) const {
  std::vector<T> tokens(out.size());
  const std::int64_t offset = layout_.first_byte + first * static_cast<std::int64_t>(sizeof(T));
  file_.read(offset, std::as_writable_bytes(std::span(tokens)));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    out[i] = static_cast<std::int64_t>(tokens[i]);
    if (out[i] >= 0 && out[i] < vocabulary_) continue;
    file_.refuse(offset + static_cast<std::int64_t>(i * sizeof(T)),
                 str("token ", first + static_cast<std::int64_t>(i), " is ", out[i],
                     "; the model's vocabulary has 0 to ", vocabulary_ - 1));
  }
}

void TokenFile::read(std::int64_t first, std::span<std::int64_t> out) const {
  PENSTOCK_CHECK(first >= 0 && std::ssize(out) <= tokens() - first, first, " + ", out.size());
  switch (layout_.type) {
    case TokenType::Uint8:
      return decode<std::uint8_t>(first, out);
    case TokenType::Int8:
      return decode<std::int8_t>(first, out);
    case TokenType::Int16:
      return decode<std::int16_t>(first, out);
    case TokenType::Int32:
      return decode<std::int32_t>(first, out);
    case TokenType::Int64:
      return decode<std::int64_t>(first, out);
    case TokenType::Uint16:
      return decode<std::uint16_t>(first, out);
    case TokenType::Uint32:
      return decode<std::uint32_t>(first, out);
  }
}

std::vector<bool> TokenFile::counting(std::int64_t first, std::int64_t count) const {
  const std::int64_t first_byte = first / 8;
  const std::int64_t end_byte = (first + count + 7) / 8;
  std::vector<std::uint8_t> bits(static_cast<std::size_t>(end_byte - first_byte));
  mask_->read(first_byte, std::as_writable_bytes(std::span(bits)));
  std::vector<bool> counts(static_cast<std::size_t>(count));
  for (std::int64_t bit = first; bit < first + count; ++bit) {
    const unsigned byte = bits[static_cast<std::size_t>(bit / 8 - first_byte)];
    counts[static_cast<std::size_t>(bit - first)] = ((byte >> (bit % 8)) & 1U) != 0;
  }
  return counts;
}

bool TokenFile::any_counts(std::int64_t first, std::int64_t count) const {
  PENSTOCK_CHECK(first >= 0 && count <= tokens() - first, first, " + ", count);
  if (!mask_) return true;
  const std::vector<bool> counts = counting(first, count);
  return std::ranges::find(counts, true) != counts.end();
}

void TokenFile::read_targets(std::int64_t first, std::span<std::int64_t> out) const {
  read(first, out);
  if (!mask_ || out.empty()) return;
  const std::vector<bool> counts = counting(first, std::ssize(out));
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!counts[i]) out[i] = kIgnoredTarget;
  }
}

std::string TokenFile::fingerprint() const {
  std::vector<std::int64_t> all;
  const auto add = [&](std::int64_t first, std::int64_t count) {
    const std::size_t before = all.size();
    all.resize(before + static_cast<std::size_t>(count) * 2);
    const auto fresh = std::span(all).subspan(before);
    read(first, fresh.first(static_cast<std::size_t>(count)));
    read_targets(first, fresh.last(static_cast<std::size_t>(count)));
  };
  if (tokens() <= kBlocks * kBlockTokens) {
    add(0, tokens());
  } else {
    const std::int64_t last = tokens() - kBlockTokens;
    for (std::int64_t block = 0; block < kBlocks; ++block) {
      const double share = static_cast<double>(block) / static_cast<double>(kBlocks - 1);
      add(block + 1 == kBlocks ? last
                               : static_cast<std::int64_t>(share * static_cast<double>(last)),
          kBlockTokens);
    }
  }
  all.push_back(tokens());
  const auto bytes = std::as_bytes(std::span(all));
  return content_hash({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

}  // namespace penstock::data
