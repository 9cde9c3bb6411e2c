// What `penstock generate` puts behind a prompt's tokens, in the words of both programs.
//
// Knows no tensors and no tokenizer.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace penstock::cli {

struct Generation {
  std::vector<std::int64_t> prompt;  // Tokens to go on from.
  std::int64_t tokens_max = 64;
  double temperature = 0.0;
  std::int64_t top_k = 0;
  double top_p = 1.0;
  std::int64_t seed = 0;
};

// The variable with the descriptor to which rank 0 writes each token and the end of a line.
inline constexpr const char* kTokensVariable = "PENSTOCK_TOKENS_FD";

// Declares the options on `app`; they are in `generation` once the app has parsed.
// Returns: that of the prompt.
CLI::Option* declare_generation(CLI::App& app, Generation& generation);

// The words that give the same again.
std::vector<std::string> words_of(const Generation& generation);

}  // namespace penstock::cli
