#include "penstock/cli/generate_command.h"

#include <charconv>
#include <optional>

#include "penstock/cli/overrides.h"
#include "penstock/core/text.h"

namespace penstock::cli {
namespace {

std::optional<double> number_of(const std::string& text) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  return is_number ? std::optional(value) : std::nullopt;
}

// Refuses a share that is not above 0 and at most 1.
std::string check_share(const std::string& text) {
  const auto value = number_of(text);
  if (value && *value > 0 && *value <= 1) return "";
  return str("expected a number above 0, up to 1, found ", in_quotes(text));
}

// Logits divided by less, or by more, are no numbers, or all the same.
std::string check_temperature(const std::string& text) {
  constexpr double kLeast = 1e-6, kMost = 1e6;
  const auto value = number_of(text);
  if (value && (*value == 0 || (*value >= kLeast && *value <= kMost))) return "";
  return str("expected 0, or a number from ", shortest(kLeast), " to ", shortest(kMost), ", found ",
             in_quotes(text));
}

// "504,3575".
std::vector<std::int64_t> tokens_in(const std::string& text) {
  std::vector<std::int64_t> tokens;
  for (const std::string& word : split(text, ',')) {
    const auto token = parse_integer(trim(word));
    if (!token || *token < 0) {
      throw CLI::ValidationError(
          "--tokens", str("expected tokens' numbers with ',' between, found ", in_quotes(text)));
    }
    tokens.push_back(*token);
  }
  return tokens;
}

}  // namespace

void declare_generate(CLI::App& app, GenerateCommand& command) {
  app.add_option("model", command.ranks.config, "folder of a Hugging Face model")
      ->required()
      ->type_name("FOLDER");
  CLI::Option* const prompt = app.add_option(
      "--prompt", command.prompt, "text to go on from; takes Python, and the folder's tokenizer");
  app.add_option_function<std::string>(
         "--tokens", [&](const std::string& text) { command.tokens = tokens_in(text); },
         "tokens to go on from, by their numbers")
      ->type_name("N,N")
      ->excludes(prompt);
  app.add_option("--max-tokens", command.tokens_max, "tokens to put behind them, at most (64)")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 24));
  app.add_option("--temperature", command.temperature,
                 "0: always the likeliest token; else logits are divided by it (0)")
      ->type_name("T")
      ->check(check_temperature);
  app.add_option("--top-k", command.top_k, "draw one of the K likeliest (0: of all)")
      ->type_name("K")
      ->check(CLI::Range(0, 1 << 30));
  app.add_option("--top-p", command.top_p,
                 "draw one of the fewest likeliest that have probability P together (1)")
      ->type_name("P")
      ->check(check_share);
  app.add_option("--seed", command.seed, "of what is drawn (0)")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 62));
  declare_key(app, command.ranks.overrides, "--pipe", "mesh.pipe",
              "N: ranks, each with a stage of the model (1)");
  declare_ranks(app, command.ranks);
  declare_set(app, command.ranks.overrides, "launch.startup_seconds=600");
  app.add_flag("--json", command.json, "print tokens and text as JSON");
  app.footer(
      "It ends behind a token that ends a text, by the folder's generation_config.json.\n"
      "Examples:\n"
      "  penstock generate SmolLM2-135M --prompt \"The capital of France is\"\n"
      "  penstock generate tuned --tokens 504,3575,282 --max-tokens 20 --pipe 2\n"
      "  penstock generate tuned --prompt \"def main(\" --temperature 0.8 --top-p 0.9 --seed 1");
}

std::vector<std::string> words_of(const GenerateCommand& command,
                                  const std::vector<std::int64_t>& tokens) {
  std::vector<std::string> words = words_of(command.ranks);
  words.insert(words.end(),
               {"--tokens", join(tokens, ","), "--max-tokens", str(command.tokens_max),
                "--temperature", shortest(command.temperature), "--top-k", str(command.top_k),
                "--top-p", shortest(command.top_p), "--seed", str(command.seed)});
  return words;
}

}  // namespace penstock::cli
