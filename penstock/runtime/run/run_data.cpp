#include "penstock/runtime/run/run_data.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/ignored_target.h"
#include "penstock/core/text.h"
#include "penstock/data/token_samples.h"
#include "penstock/nn/gpt.h"

namespace penstock::run {
namespace {

class TextOfRun : public RunData {
 public:
  TextOfRun(TextData text, std::int64_t seed, std::int64_t sequence_length)
      : text_(std::move(text)), seed_(seed), sequence_length_(sequence_length) {}

  Batch training(std::int64_t step, std::int64_t first, std::int64_t count) const override {
    return text_.training(seed_, step, first, count, sequence_length_);
  }
  Batch validation(std::size_t /*set*/, std::int64_t batch, std::int64_t first,
                   std::int64_t count) const override {
    return text_.validation(batch, first, count, sequence_length_);
  }
  std::optional<std::int64_t> silent_step(std::int64_t /*steps*/) const override { return {}; }
  double validation_weight(std::size_t /*set*/, std::int64_t /*batch*/) const override { return 1; }
  train::LossScale loss_scale() const override { return train::LossScale::samples(); }
  train::Facts facts() const override { return text_.facts(); }
  std::string summary() const override {
    return str(text_.path(), ", ", text_.files(), text_.files() == 1 ? " file, " : " files, ",
               text_.training_bytes(), " bytes to train on, ", text_.validation_bytes(),
               " to validate");
  }
  bool is_text() const override { return true; }
  std::vector<std::int64_t> prompt(std::int64_t length) const override {
    const std::string text = text_.prompt(length);
    return {reinterpret_cast<const unsigned char*>(text.data()),
            reinterpret_cast<const unsigned char*>(text.data()) + text.size()};
  }

 private:
  TextData text_;
  std::int64_t seed_;
  std::int64_t sequence_length_;
};

class TokensOfRun : public RunData {
 public:
  TokensOfRun(const data::SampleOptions& options, std::vector<std::string> sets,
              std::int64_t batch_size, std::optional<std::int64_t> document_end)
      : samples_(options),
        sets_(std::move(sets)),
        batch_size_(batch_size),
        sequence_length_(options.sequence_length),
        document_end_(document_end) {}

  Batch training(std::int64_t step, std::int64_t first, std::int64_t count) const override {
    const auto read = [this](std::int64_t number, auto... to) { samples_.training(number, to...); };
    return batch_of(read, (step - 1) * batch_size_ + first, count);
  }
  std::vector<std::string> validation_sets() const override { return sets_; }
  Batch validation(std::size_t set, std::int64_t batch, std::int64_t first,
                   std::int64_t count) const override {
    const auto read = [&](std::int64_t number, auto... to) {
      samples_.validation_of(set, number, to...);
    };
    Batch samples = batch_of(read, batch * batch_size_ + first, count);
    const std::int64_t left = samples_.validation_samples_of(set) - batch * batch_size_ - first;
    if (left < count)
      samples.target.slice(0, std::max<std::int64_t>(left, 0)).fill_(kIgnoredTarget);
    return samples;
  }
  // Sources of a mixture have epochs of their own.
  std::optional<std::int64_t> samples_of_epoch() const override {
    return samples_.sources() == 1 ? std::optional(samples_.training_samples(0)) : std::nullopt;
  }
  std::optional<std::int64_t> silent_step(std::int64_t steps) const override {
    return samples_.silent_step(steps, batch_size_);
  }
  double validation_weight(std::size_t set, std::int64_t batch) const override {
    return loss_scale().weight(static_cast<double>(batch_size_),
                               validation(set, batch, 0, batch_size_).target);
  }
  train::LossScale loss_scale() const override { return train::LossScale::tokens(); }
  // The names decide which model is the best.
  train::Facts facts() const override {
    train::Facts facts = samples_.facts();
    facts.add(agreement::Fact::ConfigValue, "data.validation", "names " + join(sets_, ", "));
    return facts;
  }
  std::string summary() const override {
    const bool mixes = samples_.is_packed() && !document_end_;
    return str(
        samples_.summary(),
        mixes ? "; packed documents see those before them (data.attend_across_documents)" : "");
  }
  bool is_text() const override { return false; }
  std::set<std::int64_t> answer_ends() const override { return samples_.answer_ends(); }
  std::vector<std::int64_t> prompt(std::int64_t length) const override {
    const at::Tensor sample = validation(0, 0, 0, 1).input[0];
    const auto* first = sample.const_data_ptr<std::int64_t>();
    return {first, first + std::min(length, sequence_length_)};
  }

 private:
  template <class Read>
  Batch batch_of(const Read& read, std::int64_t first, std::int64_t count) const {
    Batch batch{at::empty({count, sequence_length_}, at::kLong),
                at::empty({count, sequence_length_}, at::kLong)};
    for (std::int64_t i = 0; i < count; ++i) {
      read(first + i, row(batch.input, i), row(batch.target, i));
    }
    if (document_end_) keep_within_documents(batch, *document_end_);
    return batch;
  }

  std::span<std::int64_t> row(const at::Tensor& tokens, std::int64_t i) const {
    return {tokens.data_ptr<std::int64_t>() + i * sequence_length_,
            static_cast<std::size_t>(sequence_length_)};
  }

  data::TokenSamples samples_;
  std::vector<std::string> sets_;
  std::int64_t batch_size_;
  std::int64_t sequence_length_;
  std::optional<std::int64_t> document_end_;
};

std::optional<data::TokenFormat> make_format(config::DataFormat format) {
  switch (format) {
    case config::DataFormat::Auto:
    case config::DataFormat::Text:
      return {};
    case config::DataFormat::Uint16:
      return data::TokenFormat::Uint16;
    case config::DataFormat::Uint32:
      return data::TokenFormat::Uint32;
    case config::DataFormat::LlmC:
      return data::TokenFormat::LlmC;
    case config::DataFormat::Megatron:
      return data::TokenFormat::Megatron;
  }
  return {};
}

bool names_tokens(const config::DataConfig& data) {
  if (!data.sources.empty() || two_parts(data)) return true;
  if (data.format != config::DataFormat::Auto) return data.format != config::DataFormat::Text;
  return !data.path.empty() && data::looks_like_tokens(data.path);
}

// Plain tokens of nanoGPT's, unless a note says what they are.
data::SourceOptions part_of(const config::DataConfig& data, const std::string& path) {
  std::optional<data::TokenFormat> format = make_format(data.format);
  if (!format && !data::read_note(path)) format = data::TokenFormat::Uint16;
  return {.path = path, .format = format};
}

// Tokens that are letters mean nothing to a model with a tokenizer.
void refuse_letters(const data::TwoParts& parts, const Model& model) {
  if (!parts.letters || !model.tokenizer) return;
  throw ConfigError(str(quoted_path(*parts.letters), ": says that tokens are letters of its own, ",
                        "and the model has the tokenizer ", in_quotes(model.tokenizer->name)),
                    {"make tokens with that: python -m penstock.tokenize --tokenizer DIR input.txt",
                     "or train a model of penstock's own (model.type = \"gpt\")"});
}

data::SampleOptions sample_options(const config::Config& config, const Model& model) {
  const config::DataConfig& data = config.data;
  data::SampleOptions options{
      .sources = token_sources(data),
      .vocabulary = model.vocabulary,
      .sequence_length = config.model.sequence_length,
      .seed = config.seed,
      .order = data.shuffle ? data::Order::Shuffled : data::Order::AsInFiles,
      .tokenizer = model.tokenizer};
  if (const auto parts = two_parts(data)) refuse_letters(*parts, model);
  options.validation = validation_sources(data);
  return options;
}

std::vector<std::string> set_names(const config::DataConfig& data) {
  std::vector<std::string> names;
  for (const config::ValidationSet& set : data.validation) {
    names.push_back(set.name.empty() ? config::kOnlyValidationSet : set.name);
  }
  if (names.empty()) names.emplace_back(config::kOnlyValidationSet);
  return names;
}

// A folder as nanoGPT's, whose texts are beside the tokens that were made of them.
void refuse_tokens_among_texts(const config::DataConfig& data) {
  if (data.format != config::DataFormat::Auto || data.path.empty()) return;
  const std::vector<std::string> names = data::tokens_among_texts(data.path);
  if (names.empty()) return;
  throw ConfigError(
      str("data.path = ", quoted_path(data.path), ": has token files, ", join(names, ", "),
          ", and others: which are meant?"),
      {str("for the tokens, name a file: data.path = ",
           quoted_path(str(data.path, "/", names.front())), ", and data.validation the other part"),
       "for the texts, set data.format to \"text\""});
}

std::unique_ptr<RunData> open_text(const config::Config& config, std::int64_t vocabulary,
                                   std::int64_t batch_size, const std::function<void()>& advanced) {
  const std::string path = config.data.path.empty() ? python_library() : config.data.path;
  if (path.empty()) {
    throw ConfigError(
        "no data: data.path is not set and there is no python3, whose standard "
        "library is the default text",
        {"give a text file or a directory with --data"});
  }
  if (!config.data.validation.empty()) {
    throw ConfigError(str("data.validation = ", quoted_path(config.data.validation.front().path),
                          ": is for token files, and data path ", quoted_path(path), " is text"));
  }
  if (!config.data.attend_across_documents) {
    throw ConfigError(
        str("data.attend_across_documents = false: is for token files, and data path ",
            quoted_path(path), " is text"));
  }
  refuse_tokens_among_texts(config.data);
  if (vocabulary < nn::kVocabulary) {
    throw ConfigError(str("the model's vocabulary is ", vocabulary,
                          ": text is read as bytes, which take ", nn::kVocabulary));
  }
  TextData text = TextData::load(path, advanced);
  text.require(batch_size, config.model.sequence_length);
  return std::make_unique<TextOfRun>(std::move(text), config.seed, config.model.sequence_length);
}

}  // namespace

std::optional<data::TwoParts> two_parts(const config::DataConfig& data) {
  const bool asks = data.sources.empty() && data.validation.empty() && !data.path.empty();
  if (!asks || data.format == config::DataFormat::Text) return {};
  return data::two_parts(data.path);
}

std::vector<data::SourceOptions> token_sources(const config::DataConfig& data) {
  if (const auto parts = two_parts(data)) return {part_of(data, parts->training)};
  if (!names_tokens(data)) return {};
  if (data.path.empty() && data.sources.empty()) {
    throw ConfigError(
        "data.format is one of tokens, and neither data.path nor data.sources names "
        "a file");
  }
  if (data.sources.empty()) return {{.path = data.path, .format = make_format(data.format)}};
  std::vector<data::SourceOptions> sources;
  for (const config::DataSource& source : data.sources) {
    const bool is_open = source.format == config::DataFormat::Auto;
    sources.push_back({.path = source.path,
                       .weight = source.weight,
                       .format = make_format(is_open ? data.format : source.format)});
  }
  return sources;
}

std::vector<data::SourceOptions> validation_sources(const config::DataConfig& data) {
  if (const auto parts = two_parts(data)) return {part_of(data, parts->validation)};
  std::vector<data::SourceOptions> sources;
  for (const config::ValidationSet& set : data.validation) {
    sources.push_back({.path = set.path, .format = make_format(data.format)});
  }
  return sources;
}

std::unique_ptr<RunData> open_data(const config::Config& config, const Model& model,
                                   std::int64_t batch_size, const std::function<void()>& advanced) {
  if (!names_tokens(config.data)) return open_text(config, model.vocabulary, batch_size, advanced);
  return std::make_unique<TokensOfRun>(sample_options(config, model), set_names(config.data),
                                       batch_size, model.document_end);
}

}  // namespace penstock::run
