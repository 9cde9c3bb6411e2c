// The tokens of one file, whatever its format, as numbers below the model's vocabulary.
//
// TokenSource makes samples of several.  Opening one reads a header or an index and no tokens: a
// file of any size opens in milliseconds and takes no memory.  So a token that is not in the
// vocabulary is found when it is read, and fingerprint() reads some of every part of the file.
// Knows no samples.
// Thread safety: reads may overlap.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/core/ignored_target.h"
#include "penstock/files/data/corpus_note.h"
#include "penstock/files/data/data_file.h"
#include "penstock/files/data/token_layout.h"

namespace penstock::data {

class TokenFile {
 public:
  // Throws: ConfigError, with file and byte offset, for a file that is not what its format needs,
  // and for one that was made for another vocabulary.
  TokenFile(const std::string& path, std::optional<TokenFormat> format, std::int64_t vocabulary);

  const std::string& path() const { return file_.path(); }
  std::int64_t tokens() const { return layout_.tokens; }
  const std::optional<CorpusNote>& note() const { return note_; }

  // Tokens [first, first + out.size()).  REQUIRES: the file has them.
  // Throws: ConfigError, with file and byte offset, for one that is not in the vocabulary.
  void read(std::int64_t first, std::span<std::int64_t> out) const;
  // The same as targets: kIgnoredTarget in place of those that the mask leaves out.
  void read_targets(std::int64_t first, std::span<std::int64_t> out) const;

  // Whether the mask lets any of these tokens count.  REQUIRES: the file has them.
  bool any_counts(std::int64_t first, std::int64_t count) const;

  // Fingerprint of the tokens, their number and the mask, the same for all formats.  It covers all
  // tokens up to 128 Ki of them, else as many in blocks that are spread evenly, the ends included.
  // Throws: as read().
  std::string fingerprint() const;

 private:
  template <class T>
  void decode(std::int64_t first, std::span<std::int64_t> out) const;
  // The mask of these tokens: whether each counts.
  std::vector<bool> counting(std::int64_t first, std::int64_t count) const;

  DataFile file_;
  std::int64_t vocabulary_;
  std::optional<CorpusNote> note_;
  TokenLayout layout_;
  std::optional<DataFile> mask_;  // A bit a token, the lowest of a byte first; 1: it counts.
};

}  // namespace penstock::data
