#include "penstock/runtime/run/whole_corpus.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <span>

#include "penstock/core/error.h"
#include "penstock/core/ignored_target.h"
#include "penstock/core/text.h"
#include "penstock/runtime/run/run_data.h"

namespace penstock::run {
namespace {

std::span<std::int64_t> values_of(const at::Tensor& row) {
  return {row.data_ptr<std::int64_t>(), static_cast<std::size_t>(row.numel())};
}

}  // namespace

WholeCorpus::WholeCorpus(const config::Config& config, const Model& model)
    : sequence_length_(config.model.sequence_length), document_end_(model.document_end) {
  if (const auto parts = two_parts(config.data)) {
    throw ConfigError(
        str("evaluate: data path ", quoted_path(config.data.path), " has two parts: which?"),
        {str("name one: --data ", quoted_path(parts->validation)),
         "of nanoGPT's, say the type, too: --set data.format=uint16"});
  }
  for (const data::SourceOptions& source : token_sources(config.data)) {
    sources_.emplace_back(source, model.vocabulary, sequence_length_);
    samples_ += sources_.back().samples();
  }
  std::vector<const data::TokenSource*> all;
  for (const data::TokenSource& source : sources_) all.push_back(&source);
  data::require_one_tokenizer(all, model.tokenizer);
  if (!sources_.empty()) return;
  throw ConfigError(
      config.data.path.empty()
          ? std::string("evaluate: no data: give token files with --data")
          : str("evaluate: data path ", quoted_path(config.data.path), " is text, not tokens"),
      {"python -m penstock.tokenize makes token files of text",
       "of plain tokens without a note, say the type: --set data.format=uint16"});
}

std::int64_t WholeCorpus::tokens() const {
  std::int64_t sum = 0;
  for (const data::TokenSource& source : sources_) sum += source.tokens();
  return sum;
}

std::int64_t WholeCorpus::files() const {
  std::int64_t sum = 0;
  for (const data::TokenSource& source : sources_) sum += source.files();
  return sum;
}

Batch WholeCorpus::read(std::int64_t first, std::int64_t count) const {
  Batch batch{at::zeros({count, sequence_length_}, at::kLong),
              at::full({count, sequence_length_}, kIgnoredTarget, at::kLong)};
  for (std::int64_t i = 0; i < count && first + i < samples_; ++i) {
    read_sample(first + i, batch.input[i], batch.target[i]);
  }
  if (document_end_) keep_within_documents(batch, *document_end_);
  return batch;
}

void WholeCorpus::read_sample(std::int64_t sample, const at::Tensor& input,
                              const at::Tensor& target) const {
  for (const data::TokenSource& source : sources_) {
    if (sample < source.samples()) return source.read(sample, values_of(input), values_of(target));
    sample -= source.samples();
  }
}

train::Facts WholeCorpus::facts(const std::string& name) const {
  train::Facts facts;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    facts.add(agreement::Fact::TokenSource, name.empty() ? str(i) : str(i, " of ", name),
              str(sources_[i].samples(), " samples, ", sources_[i].fingerprint()));
  }
  return facts;
}

}  // namespace penstock::run
