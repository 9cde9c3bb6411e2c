// What `penstock generate` puts behind a prompt's tokens, in the words of both programs.
//
// Knows no tensors and no tokenizer.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock::cli {

struct Generation {
  std::vector<std::int64_t> prompt;        // Tokens to go on from; empty: prompts come by a pipe.
  std::vector<std::int64_t> ends;          // Tokens that end an answer, besides the folder's.
  std::optional<std::int64_t> tokens_max;  // Absent: what the command takes.
  double temperature = 0.0;
  std::int64_t top_k = 0;
  double top_p = 1.0;
  std::int64_t seed = 0;
};

// The variables with the descriptors of the pipes between `penstock generate` and rank 0, which
// carry lines.  Rank 0 writes each token, and at an answer's end one of the words below; it reads
// "prompt 1,2,3" and kInterrupt, and leaves where the pipe ends.
inline constexpr const char* kTokensVariable = "PENSTOCK_TOKENS_FD";
inline constexpr const char* kPromptsVariable = "PENSTOCK_PROMPTS_FD";
inline constexpr const char* kPrompt = "prompt ";
inline constexpr const char* kInterrupt = "interrupt";
inline constexpr const char* kEndOfAnswer = "end";  // A token ended it, or an interrupt.
inline constexpr const char* kTokensMax = "tokens";
inline constexpr const char* kPositions = "positions";

// "504,3575" of tokens.  Throws: CLI::ValidationError.
std::vector<std::int64_t> tokens_in(const std::string& text);

// Declares the options on `app`; they are in `generation` once the app has parsed.
// Returns: that of the prompt.
CLI::Option* declare_generation(CLI::App& app, Generation& generation);

// Declares on `app`, of ranks, what users do not say themselves.
void declare_ends(CLI::App& app, Generation& generation);

// The words that give the same again.  REQUIRES: tokens_max.
std::vector<std::string> words_of(const Generation& generation);

}  // namespace penstock::cli
