#include "penstock/cli/generation.h"

#include "penstock/core/text.h"

namespace penstock::cli {
namespace {

// Checks that a share is above 0, and at most 1.
std::string check_share(const std::string& text) {
  const auto value = parse_number(text);
  if (value && *value > 0 && *value <= 1) return "";
  return str("expected a number above 0, up to 1, found ", in_quotes(text));
}

// Logits divided by less, or by more, are no numbers, or all the same.
std::string check_temperature(const std::string& text) {
  constexpr double kLeast = 1e-6, kMost = 1e6;
  const auto value = parse_number(text);
  if (value && (*value == 0 || (*value >= kLeast && *value <= kMost))) return "";
  return str("expected 0, or a number from ", shortest(kLeast), " to ", shortest(kMost), ", found ",
             in_quotes(text));
}

}  // namespace

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

CLI::Option* declare_generation(CLI::App& app, Generation& generation) {
  CLI::Option* const prompt =
      app.add_option_function<std::string>(
             "--tokens", [&](const std::string& text) { generation.prompt = tokens_in(text); },
             "tokens to go on from, by their numbers")
          ->type_name("N,N");
  app.add_option("--max-tokens", generation.tokens_max,
                 "tokens to put behind them, at most (64; of an answer in a chat 512)")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 24));
  app.add_option("--temperature", generation.temperature,
                 "0: always the likeliest token; else logits are divided by it (0)")
      ->type_name("T")
      ->check(check_temperature);
  app.add_option("--top-k", generation.top_k, "draw one of the K likeliest (0: of all)")
      ->type_name("K")
      ->check(CLI::Range(0, 1 << 30));
  app.add_option("--top-p", generation.top_p,
                 "draw one of the fewest likeliest that have probability P together (1)")
      ->type_name("P")
      ->check(check_share);
  app.add_option("--seed", generation.seed, "of what is drawn (0)")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 62));
  return prompt;
}

void declare_ends(CLI::App& app, Generation& generation) {
  app.add_option_function<std::string>(
      "--ends", [&](const std::string& text) { generation.ends = tokens_in(text); });
}

std::vector<std::string> words_of(const Generation& generation) {
  std::vector<std::string> words = {"--max-tokens",  str(generation.tokens_max.value()),
                                    "--temperature", shortest(generation.temperature),
                                    "--top-k",       str(generation.top_k),
                                    "--top-p",       shortest(generation.top_p),
                                    "--seed",        str(generation.seed)};
  const auto add = [&](const char* option, const std::vector<std::int64_t>& tokens) {
    if (!tokens.empty()) words.insert(words.end(), {option, join(tokens, ",")});
  };
  add("--tokens", generation.prompt);
  add("--ends", generation.ends);
  return words;
}

}  // namespace penstock::cli
