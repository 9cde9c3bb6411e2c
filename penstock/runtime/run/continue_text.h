// Tokens that a folder's model puts behind a prompt, or behind one after the other, on one rank.
//
// cli/ calls it on every rank of `penstock generate`.  Each rank has the layers of one stage, or
// its share of them, and the keys and values of the tokens so far for its heads.  One rank draws
// all tokens.  Knows no text and no tokenizer.
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/config/read.h"
#include "penstock/nn/sampling.h"
#include "penstock/run/run.h"

namespace penstock::run {

struct Continuation {
  std::vector<std::int64_t> prompt;  // The only one; empty: whoever listens has prompts.
  std::int64_t tokens = 0;           // At most so many more.
  nn::SamplingOptions sampling;
  std::int64_t seed = 0;
  std::vector<std::int64_t> ends = {};  // Tokens that end an answer, besides the folder's.
};

enum class AnswerEnd : std::uint8_t {
  Token,        // One that ends a text, which was heard.
  Interrupted,  // Whoever listens wanted no more.
  TokensMax,
  Positions,  // The model has no more of them.
};

struct NextPrompt {
  std::vector<std::int64_t> prompt = {};
  bool leaves = false;  // There will be none.
};

// Whoever listens to rank 0.  No call takes longer than a moment: rank 0 shows that it lives, and
// calls again.
struct Listener {
  // Empty and no end: none has come yet.
  std::function<NextPrompt()> next_prompt;
  // Whether the answer is to end before its next token.
  std::function<bool()> interrupts;
  // Both return whether it was taken.
  std::function<bool(std::int64_t token)> hear;
  std::function<bool(AnswerEnd end)> end;
};

// Answers the prompt, or each that comes.  An answer ends with an end-of-text token of the folder,
// which is the last that is heard, or as AnswerEnd says.  A prompt that begins with all that was
// read and written before goes on from there.  Collective over all ranks, which are the stages of
// one pipeline, or share these; rank 0 listens.
// Returns: Ok, or the code that a hook asked to stop with.
// Throws: ConfigError for a model that is not a folder's, for a mesh with replicas, for tokens
// beyond the vocabulary or, in a single prompt, more of them than the model has positions; Error
// of every kind.
ExitCode continue_text(const config::ReadConfig& read, comm::Communicator& communicator,
                       c10::Device device, const RunHooks& hooks, const Continuation& wanted,
                       const Listener& listener);

}  // namespace penstock::run
