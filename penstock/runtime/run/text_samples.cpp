#include "penstock/runtime/run/text_samples.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "penstock/core/counted.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/core/utf8.h"
#include "penstock/plan/measure/metrics_lines.h"
#include "penstock/runtime/hugging_face/generation_config.h"

namespace penstock::run {
namespace {

using Tokens = std::vector<std::int64_t>;

constexpr double kTemperature = 0.8;
constexpr const char* kPromptKey = "prompt of samples";

std::string as_bytes(const Tokens& tokens) {
  std::string bytes;
  for (const std::int64_t token : tokens) bytes += static_cast<char>(token);
  return bytes;
}

Tokens as_tokens(std::string_view bytes) {
  Tokens tokens;
  for (const char byte : bytes) tokens.push_back(static_cast<unsigned char>(byte));
  return tokens;
}

// The bytes of a model as text that a terminal and a reader of UTF-8 take.
std::string as_text(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const std::size_t length = utf8_length(bytes);
    const auto byte = static_cast<unsigned char>(bytes[0]);
    const bool is_control = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F;
    text += length == 0 || is_control ? "\xEF\xBF\xBD" : bytes.substr(0, length);
    bytes.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return text;
}

// The last `bytes` bytes or fewer, from the beginning of a character.
std::string_view end_of(std::string_view text, std::size_t bytes) {
  text.remove_prefix(text.size() - std::min(text.size(), bytes));
  const auto continues = [&] { return (static_cast<unsigned char>(text[0]) & 0xC0) == 0x80; };
  while (!text.empty() && continues()) text.remove_prefix(1);
  return text;
}

GenerateOptions options_of(const config::Config& config, const Model& model, const RunData& data) {
  GenerateOptions options{.window = std::numeric_limits<std::int64_t>::max(),
                          .sampling = {.temperature = kTemperature},
                          .seed = config.seed};
  if (!model.folder) {
    options.tokens = data.is_text() ? config.run.sample_bytes : 0;
    options.window = config.model.sequence_length;
    return options;
  }
  options.tokens = config.run.sample_tokens;
  const nn::DecoderOptions& decoder = model.folder->options();
  if (!decoder.rotary) options.window = decoder.positions;
  if (!config.data.attend_across_documents) {
    options.window = nn::tokens_with_documents_apart(decoder).value_or(options.window);
  }
  if (!data.is_text()) {
    options.ends = hugging_face::read_generation_config(model.folder->path()).ends;
  }
  return options;
}

}  // namespace

TextSamples::TextSamples(const config::Config& config, const Model& model, const RunData& data,
                         const RunHooks& hooks, Show show)
    : config_(config),
      model_(model),
      data_(data),
      hooks_(hooks),
      show_(std::move(show)),
      options_(options_of(config, model, data)) {}

void TextSamples::prepare(comm::Communicator& communicator, execute::Progress& progress) {
  if (!any()) return;
  if (config_.run.sample_prompt.empty() || !model_.folder) {
    const std::int64_t length = config_.model.sequence_length;
    prompt_ = data_.prompt(model_.folder ? std::max<std::int64_t>(length / 2, 1) : length);
    return;
  }
  if (communicator.rank().value == 0) {
    const execute::WorkMark asking(progress, "asking the tokenizer", execute::Files::Used);
    communicator.put(kPromptKey, join(prompt(), ","));
  }
  const execute::WaitMark wait(progress, "waiting for the prompt's tokens");
  for (const std::string& token : split(communicator.get(kPromptKey), ',')) {
    prompt_.push_back(parse_integer(token).value_or(0));
  }
}

Tokens TextSamples::prompt() const {
  const std::string& text = config_.run.sample_prompt;
  Tokens tokens = data_.is_text() ? as_tokens(text) : hooks_.tokens_of(text, model_.folder->path());
  check(tokens);
  return tokens;
}

void TextSamples::check(const Tokens& prompt) const {
  const std::string what = "run.sample_prompt = " + in_quotes(config_.run.sample_prompt);
  if (prompt.empty()) throw ConfigError(what + ": has no tokens");
  if (std::ssize(prompt) > options_.window) {
    throw ConfigError(str(what, ": has ", counted(prompt, "token"), ", and the model has ",
                          counted(options_.window, "position")));
  }
  for (const std::int64_t token : prompt) {
    if (token >= 0 && token < model_.vocabulary) continue;
    throw ConfigError(str(what, ": has token ", token, ", and the model's vocabulary has 0 to ",
                          model_.vocabulary - 1));
  }
}

void TextSamples::begin_files(RunFiles& files, const std::string& earlier) {
  files_ = &files;
  if (any()) files.begin_lines(measure::kSamplesFile, earlier);
}

void TextSamples::write(std::int64_t step, train::Trainer& trainer, execute::Progress& progress) {
  const execute::Phase generating(progress, "generating text");
  const Tokens tokens = generate(trainer, prompt_, options_);
  if (files_ == nullptr) return;
  const execute::WorkMark writing(progress, "writing the text", execute::Files::Used);
  keep(step, tokens);
}

void TextSamples::keep(std::int64_t step, const Tokens& tokens) {
  Tokens all = prompt_;
  all.insert(all.end(), tokens.begin(), tokens.end());
  if (!prompt_text_) prompt_text_ = text_of(prompt_);
  const std::optional<std::string> whole = text_of(all);
  const std::string title = str("step ", step, "/", config_.run.steps, "  sample");
  std::string line = str("{\"step\": ", step);
  if (prompt_text_ && whole) {
    // A tokenizer may write a token otherwise at the beginning of a text.
    const bool goes_on = whole->starts_with(*prompt_text_);
    const std::string text = goes_on ? whole->substr(prompt_text_->size()) : *whole;
    line += str(", \"prompt\": ", json_quote(as_text(*prompt_text_)),
                ", \"text\": ", json_quote(as_text(text)));
    files_->replace("sample.txt", *whole);
    constexpr std::size_t kPromptShown = 60;
    const std::string shown = goes_on ? str(end_of(*prompt_text_, kPromptShown), text) : text;
    show_(str(title, " (after the prompt's \"...\"):\n...", as_text(shown), "\n"));
  } else {
    show_(str(title, ", as tokens: ", join(tokens, ","), "\n"));
  }
  files_->append(measure::kSamplesFile, str(line, ", \"prompt_tokens\": [", join(prompt_, ", "),
                                            "], \"tokens\": [", join(tokens, ", "), "]}\n"));
}

std::optional<std::string> TextSamples::text_of(const Tokens& tokens) {
  if (data_.is_text()) return as_bytes(tokens);
  if (is_text_lost_) return std::nullopt;
  try {
    return hooks_.text_of(tokens, model_.folder->path());
  } catch (const Error& error) {
    is_text_lost_ = true;
    show_(str("penstock: samples stay tokens: ", error.message(), "\n"));
    return std::nullopt;
  }
}

}  // namespace penstock::run
