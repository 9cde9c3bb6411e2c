#include "penstock/data/token_samples.h"

#include <algorithm>
#include <set>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/data/permutation.h"

namespace penstock::data {
namespace {

constexpr std::int64_t kValidationShare = 20;  // One sample in so many.
constexpr std::uint64_t kValidationKey = 0x76616C6964617465u;

std::vector<double> weights_of(const std::vector<SourceOptions>& sources) {
  PENSTOCK_CHECK(!sources.empty());
  std::vector<double> weights;
  for (const SourceOptions& source : sources) weights.push_back(source.weight);
  return weights;
}

void require_one_tokenizer(const std::set<std::string>& hashes) {
  if (hashes.size() < 2) return;
  throw ConfigError(str("the token files were made by ", hashes.size(),
                        " different tokenizers, by the notes beside them; a model has one"));
}

}  // namespace

TokenSamples::TokenSamples(const SampleOptions& options)
    : mixture_(weights_of(options.sources)),
      seed_(static_cast<std::uint64_t>(options.seed)),
      order_(options.order) {
  std::set<std::string> tokenizers;
  const auto open = [&](const SourceOptions& source) {
    TokenSource tokens(source, options.vocabulary, options.sequence_length);
    for (std::string& hash : tokens.tokenizers()) tokenizers.insert(std::move(hash));
    return tokens;
  };
  for (const SourceOptions& source : options.sources) {
    TokenSource tokens = open(source);
    const std::int64_t samples = tokens.samples();
    const std::int64_t left_out =
        options.validation.empty() ? std::max<std::int64_t>(1, samples / kValidationShare) : 0;
    if (left_out == samples) {
      throw ConfigError(str("token source ", quoted_path(source.path), ": has ", samples,
                            " sample, and validation gets one of each source"),
                        {"name other tokens in data.validation, or give it more"});
    }
    validation_samples_ += left_out;
    sources_.push_back({std::move(tokens), samples - left_out});
  }
  for (const SourceOptions& source : options.validation) {
    validation_.push_back(open(source));
    validation_samples_ += validation_.back().samples();
  }
  require_one_tokenizer(tokenizers);
}

void TokenSamples::training(std::int64_t number, std::span<std::int64_t> inputs,
                            std::span<std::int64_t> targets) const {
  const auto [index, ordinal] = mixture_.place(number);
  const Source& source = sources_[static_cast<std::size_t>(index)];
  std::int64_t sample = ordinal % source.training_samples;
  if (order_ == Order::Shuffled) {
    const auto epoch = static_cast<std::uint64_t>(ordinal / source.training_samples);
    const std::uint64_t key = mix(mix(mix(seed_) ^ static_cast<std::uint64_t>(index)) ^ epoch);
    sample = Permutation(source.training_samples, key).at(sample);
  }
  source.tokens.read(sample, inputs, targets);
}

void TokenSamples::validation(std::int64_t number, std::span<std::int64_t> inputs,
                              std::span<std::int64_t> targets) const {
  std::int64_t sample =
      Permutation(validation_samples_, kValidationKey).at(number % validation_samples_);
  for (const TokenSource& source : validation_) {
    if (sample < source.samples()) return source.read(sample, inputs, targets);
    sample -= source.samples();
  }
  for (const Source& source : sources_) {
    const std::int64_t left_out = source.tokens.samples() - source.training_samples;
    if (sample < left_out) {
      return source.tokens.read(source.training_samples + sample, inputs, targets);
    }
    sample -= left_out;
  }
  PENSTOCK_CHECK(false, number);
}

std::vector<std::pair<std::string, std::string>> TokenSamples::facts() const {
  std::vector<std::pair<std::string, std::string>> facts = {
      {"token sources", str(sources_.size())},
      {"token samples to validate", str(validation_samples_)}};
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    facts.emplace_back(
        str("token source ", i),
        str(mixture_.parts()[i], " parts, ", sources_[i].tokens.files(), " files, ",
            sources_[i].training_samples, " samples, ", sources_[i].tokens.fingerprint()));
  }
  for (std::size_t i = 0; i < validation_.size(); ++i) {
    facts.emplace_back(str("token source ", i, " to validate"), validation_[i].fingerprint());
  }
  return facts;
}

std::string TokenSamples::summary() const {
  std::int64_t files = 0, tokens = 0, samples = 0;
  for (const Source& source : sources_) {
    files += source.tokens.files();
    tokens += source.tokens.tokens();
    samples += source.training_samples;
  }
  return str(sources_.size(), sources_.size() == 1 ? " source, " : " sources, ", files,
             files == 1 ? " file, " : " files, ", tokens, " tokens, ", samples,
             " samples to train on, ", validation_samples_, " to validate");
}

}  // namespace penstock::data
