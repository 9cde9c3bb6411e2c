// Tokens from a model that is being trained, one after the other, through the whole pipeline.
//
// text_samples.h calls it.  The model passes over all tokens again for each new one, and keeps no
// keys and values: continue_text.h does, for layers of its own.  Knows no files.
#pragma once
#include <cstdint>
#include <vector>

#include "penstock/nn/sampling.h"
#include "penstock/train/trainer.h"

namespace penstock::run {

struct GenerateOptions {
  std::int64_t tokens = 0;  // At most so many.
  // The model sees so many of the last tokens; no fewer than the prompt has.
  std::int64_t window = 0;
  std::vector<std::int64_t> ends;  // One of these is the last.
  nn::SamplingOptions sampling;
  std::int64_t seed = 0;
};

// The tokens behind `prompt`.  Collective over the ranks of each replica; the same on every rank.
// REQUIRES: the prompt is the same on every rank.
// Throws: NumericsError, on the last stage's rank, for an output that is not finite.
std::vector<std::int64_t> generate(train::Trainer& trainer, std::vector<std::int64_t> prompt,
                                   const GenerateOptions& options);

}  // namespace penstock::run
