// The samples of a training run, from one or several sources of tokens, by number.
//
// A run asks for samples (step - 1) x train_batch_size and the ones after it, each rank for its
// own.  Sample `number` of training is a function of the number, the seed and the sources alone.
// So every layout sees the same samples in a step.  A run that goes on after a step goes on with
// the next sample: no position is saved.  (Another train_batch_size has other numbers for the same
// step.) Knows no ranks and no steps.
//
// mixture.h chooses the source.  An epoch of a source takes each of its samples once, in an order
// of its own (permutation.h) or, without shuffling, in that of the files.  Nothing in memory grows
// with the sources.
// Validation: sources of their own, each a set and all of them one, or the last 5 % of each source,
// which training leaves out, as one set.
// Shapes: inputs and targets are sequence_length numbers each; targets are the tokens that follow.
#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "penstock/core/agreement/facts.h"
#include "penstock/files/data/mixture.h"
#include "penstock/files/data/token_source.h"
#include "penstock/files/data/tokenizers.h"

namespace penstock::data {

enum class Order : std::uint8_t { Shuffled, AsInFiles };

struct SampleOptions {
  std::vector<SourceOptions> sources = {};
  std::vector<SourceOptions> validation = {};  // None: parts of the sources; weights do not count.
  std::int64_t vocabulary = 0;
  std::int64_t sequence_length = 0;
  std::int64_t seed = 0;
  Order order = Order::Shuffled;
  std::optional<Tokenizer> tokenizer = {};  // The model's, where it is known.
};

class TokenSamples {
 public:
  // Throws: ConfigError, as the sources do, for sources that other tokenizers have made
  // (tokenizers.h), and for a source too small to leave a sample for validation.
  explicit TokenSamples(const SampleOptions& options);

  // REQUIRES: number >= 0, spans of sequence_length.  Throws: ConfigError, as TokenFile::read().
  void training(std::int64_t number, std::span<std::int64_t> inputs,
                std::span<std::int64_t> targets) const;
  // The same in every run, in one order, again and again.
  void validation(std::int64_t number, std::span<std::int64_t> inputs,
                  std::span<std::int64_t> targets) const;
  // The same of one set.  REQUIRES: set < validation_sets().
  void validation_of(std::size_t set, std::int64_t number, std::span<std::int64_t> inputs,
                     std::span<std::int64_t> targets) const;
  std::size_t validation_sets() const { return validation_.empty() ? 1 : validation_.size(); }

  std::size_t sources() const { return sources_.size(); }
  // Samples of an epoch of each source.
  std::int64_t training_samples(std::int64_t source) const {
    return sources_[static_cast<std::size_t>(source)].training_samples;
  }
  std::int64_t validation_samples() const { return validation_samples_; }
  // Samples of one set, after which it begins anew.  REQUIRES: set < validation_sets().
  std::int64_t validation_samples_of(std::size_t set) const {
    return validation_.empty() ? validation_samples_ : validation_[set].samples();
  }
  // Whether samples of a source were packed: documents begin and end within them.
  bool is_packed() const;
  // The tokens with which the answers end that are trained on, as notes of the sources say.
  std::set<std::int64_t> answer_ends() const;
  // The first step, from 1, of which no target counts by the masks; 0: none of any sample to train
  // on does.  Reads all masks.  Throws: ConfigError for one that cannot be read.
  std::optional<std::int64_t> silent_step(std::int64_t steps, std::int64_t batch_size) const;

  // Facts by which ranks see whether they have the same samples.  Reads a part of each file
  // (TokenFile::fingerprint).
  agreement::Facts facts() const;
  // A line: "2 sources, 3 files, 40960 tokens, 300 samples to train on, 15 to validate".
  std::string summary() const;

 private:
  struct Source {
    TokenSource tokens;
    std::int64_t training_samples;
  };
  struct Place {
    std::int64_t source;
    std::int64_t sample;
  };
  Place place(std::int64_t number) const;
  std::vector<std::vector<bool>> silent_samples() const;
  std::vector<Source> sources_;
  std::vector<TokenSource> validation_;
  std::int64_t validation_samples_ = 0;
  Mixture mixture_;
  std::uint64_t seed_;
  Order order_;
};

}  // namespace penstock::data
