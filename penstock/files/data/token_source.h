// A token file, or a folder of them, as samples of one length.
//
// TokenSamples mix several.  Sample i of a file is tokens [i x length, (i + 1) x length] of it: the
// last of them is only a target, and the first input of the next sample.  No sample spans two
// files; a file's tokens after its last whole sample are not used.  Documents are not cut apart: a
// sample holds what lies in the file, end-of-text tokens included.  Knows no order of samples.
#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "penstock/files/data/token_file.h"
#include "penstock/files/data/tokenizers.h"

namespace penstock::data {

struct SourceOptions {
  std::string path =
      {};  // A file; a folder, of which every *.bin counts; Megatron's PATH of PATH.bin.
  double weight = 1.0;
  std::optional<TokenFormat> format = {};  // Absent: what each file says.
};

// Whether a path is taken for tokens where nothing says so: a file *.bin or *.idx, a Megatron PATH,
// or a folder that holds such files and, hidden ones and notes aside, nothing else.
bool looks_like_tokens(const std::string& path);

// A folder of nanoGPT's: train.bin and val.bin, beside what else there is.
struct TwoParts {
  std::string training;
  std::string validation;
  std::optional<std::string> letters;  // The path of meta.pkl: tokens are letters of its own.
};
std::optional<TwoParts> two_parts(const std::string& folder);

// The names of a folder's token files, also beside others; none of what is no folder.
std::vector<std::string> tokens_among_texts(const std::string& folder);

class TokenSource {
 public:
  // Throws: ConfigError, for a path that is not there, for files that are not what they should be,
  // and for a source without one whole sample.
  TokenSource(const SourceOptions& options, std::int64_t vocabulary, std::int64_t sequence_length);

  const std::string& path() const { return path_; }
  std::int64_t files() const { return std::ssize(files_); }
  std::int64_t tokens() const;
  std::int64_t samples() const { return end_.back(); }

  // Reads a sample: both are of sequence_length.  Targets are the tokens that follow, or
  // kIgnoredTarget.
  // REQUIRES: sample in [0, samples()).  Throws: ConfigError, as TokenFile::read().
  void read(std::int64_t sample, std::span<std::int64_t> inputs,
            std::span<std::int64_t> targets) const;

  // Whether any target of a sample counts, by the mask.  REQUIRES: as read().
  bool any_counts(std::int64_t sample) const;
  bool is_masked() const;
  // Whether samples were packed: documents begin and end within them.
  bool is_packed() const;

  // Fingerprint of all files in their order.
  std::string fingerprint() const;
  // The tokenizers that made the files, each once, as far as notes say.
  std::vector<Tokenizer> tokenizers() const;
  // The tokens that end a document, as notes say; absent stands for a file whose note, or lack of
  // one, says none.
  std::set<std::optional<std::int64_t>> document_ends() const;
  // The tokens with which answers of chats end, as notes say.
  std::set<std::int64_t> answer_ends() const;

 private:
  struct Place {
    const TokenFile& file;
    std::int64_t first;  // Token.
  };
  Place place(std::int64_t sample) const;

  std::string path_;
  std::int64_t sequence_length_;
  std::vector<TokenFile> files_;
  std::vector<std::int64_t> end_;  // Samples of a file and all before it.
};

}  // namespace penstock::data
