// The command line of `penstock generate`, as both programs read it.
//
// `penstock` parses it to start ranks, `penstock-runtime` parses the same words to be one.
// Knows no tensors and no tokenizer.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/cli/train_command.h"

namespace penstock::cli {

struct GenerateCommand {
  TrainCommand ranks;                 // Its `config` is the folder of a model.
  std::optional<std::string> prompt;  // Text; ranks get its tokens.
  std::vector<std::int64_t> tokens;
  std::int64_t tokens_max = 64;
  double temperature = 0.0;
  std::int64_t top_k = 0;
  double top_p = 1.0;
  std::int64_t seed = 0;
  bool json = false;
};

// The variable with the descriptor to which rank 0 writes each token and the end of a line.
inline constexpr const char* kTokensVariable = "PENSTOCK_TOKENS_FD";

// Declares the options on `app`; they are in `command` once the app has parsed.
void declare_generate(CLI::App& app, GenerateCommand& command);

// The words after `generate` by which a rank goes on behind `tokens`.
std::vector<std::string> words_of(const GenerateCommand& command,
                                  const std::vector<std::int64_t>& tokens);

}  // namespace penstock::cli
