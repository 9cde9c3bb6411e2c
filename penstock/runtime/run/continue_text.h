// Tokens that a folder's model puts behind a prompt, on one rank of a run.
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
  std::vector<std::int64_t> prompt;
  std::int64_t tokens = 0;  // At most so many more.
  nn::SamplingOptions sampling;
  std::int64_t seed = 0;
};

// Hears each token on rank 0, as soon as it is there.
using HearToken = std::function<void(std::int64_t token)>;

// Goes on until an end-of-text token of the folder, which is the last that is heard, or until there
// are so many tokens.  Collective over all ranks, which are the stages of one pipeline, or
// share these.
// Returns: Ok, or the code that a hook asked to stop with.
// Throws: ConfigError for a model that is not a folder's, for a mesh with replicas, for tokens
// beyond the vocabulary or more of them than the model has positions; Error of every kind.
ExitCode continue_text(const config::ReadConfig& read, comm::Communicator& communicator,
                       c10::Device device, const RunHooks& hooks, const Continuation& wanted,
                       const HearToken& hear);

}  // namespace penstock::run
