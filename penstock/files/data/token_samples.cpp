#include "penstock/data/token_samples.h"

#include <algorithm>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/files/data/permutation.h"

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

}  // namespace

TokenSamples::TokenSamples(const SampleOptions& options)
    : mixture_(weights_of(options.sources)),
      seed_(static_cast<std::uint64_t>(options.seed)),
      order_(options.order) {
  const auto open = [&](const SourceOptions& source) {
    return TokenSource(source, options.vocabulary, options.sequence_length);
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
  std::vector<const TokenSource*> all;
  for (const Source& source : sources_) all.push_back(&source.tokens);
  for (const TokenSource& source : validation_) all.push_back(&source);
  require_one_tokenizer(all, options.tokenizer);
}

TokenSamples::Place TokenSamples::place(std::int64_t number) const {
  const auto [index, ordinal] = mixture_.place(number);
  const Source& source = sources_[static_cast<std::size_t>(index)];
  std::int64_t sample = ordinal % source.training_samples;
  if (order_ == Order::Shuffled) {
    const auto epoch = static_cast<std::uint64_t>(ordinal / source.training_samples);
    const std::uint64_t key = mix(mix(mix(seed_) ^ static_cast<std::uint64_t>(index)) ^ epoch);
    sample = Permutation(source.training_samples, key).at(sample);
  }
  return {.source = index, .sample = sample};
}

void TokenSamples::training(std::int64_t number, std::span<std::int64_t> inputs,
                            std::span<std::int64_t> targets) const {
  const auto [source, sample] = place(number);
  sources_[static_cast<std::size_t>(source)].tokens.read(sample, inputs, targets);
}

bool TokenSamples::is_packed() const {
  return std::ranges::any_of(sources_, [](const Source& each) { return each.tokens.is_packed(); });
}

// Samples to train on that have no target that counts, by source.
std::vector<std::vector<bool>> TokenSamples::silent_samples() const {
  std::vector<std::vector<bool>> silent;
  for (const Source& source : sources_) {
    silent.emplace_back(static_cast<std::size_t>(source.training_samples));
    for (std::int64_t i = 0; source.tokens.is_masked() && i < source.training_samples; ++i) {
      silent.back()[static_cast<std::size_t>(i)] = !source.tokens.any_counts(i);
    }
  }
  return silent;
}

std::optional<std::int64_t> TokenSamples::silent_step(std::int64_t steps,
                                                      std::int64_t batch_size) const {
  const std::vector<std::vector<bool>> silent = silent_samples();
  const auto all = [](const std::vector<bool>& of) { return std::ranges::count(of, false) == 0; };
  const auto none = [](const std::vector<bool>& of) { return std::ranges::count(of, true) == 0; };
  if (std::ranges::all_of(silent, all)) return 0;
  if (std::ranges::all_of(silent, none)) return {};
  const auto is_silent = [&](std::int64_t number) {
    const auto [source, sample] = place(number);
    return silent[static_cast<std::size_t>(source)][static_cast<std::size_t>(sample)] == true;
  };
  for (std::int64_t step = 1; step <= steps; ++step) {
    std::int64_t number = (step - 1) * batch_size;
    const std::int64_t end = number + batch_size;
    while (number < end && is_silent(number)) ++number;
    if (number == end) return step;
  }
  return {};
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

void TokenSamples::validation_of(std::size_t set, std::int64_t number,
                                 std::span<std::int64_t> inputs,
                                 std::span<std::int64_t> targets) const {
  PENSTOCK_CHECK(set < validation_sets(), set);
  if (validation_.size() < 2) return validation(number, inputs, targets);
  const TokenSource& source = validation_[set];
  const std::int64_t samples = source.samples();
  source.read(Permutation(samples, kValidationKey).at(number % samples), inputs, targets);
}

std::set<std::int64_t> TokenSamples::answer_ends() const {
  std::set<std::int64_t> all;
  for (const Source& source : sources_) all.merge(source.tokens.answer_ends());
  return all;
}

agreement::Facts TokenSamples::facts() const {
  using agreement::Fact;
  agreement::Facts facts = {{Fact::TokenSources, str(sources_.size())},
                            {Fact::TokenSamplesToValidate, str(validation_samples_)}};
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    facts.add(Fact::TokenSource, str(i),
              str(mixture_.parts()[i], " parts, ", sources_[i].tokens.files(), " files, ",
                  sources_[i].training_samples, " samples, ", sources_[i].tokens.fingerprint()));
  }
  for (std::size_t i = 0; i < validation_.size(); ++i) {
    facts.add(Fact::TokenSourceToValidate, str(i), validation_[i].fingerprint());
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
