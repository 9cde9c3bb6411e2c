// Text from a trained byte-level model, one byte after the other, through the whole pipeline.
//
// run.h calls it at the end of a run.  Knows no files.
#pragma once
#include <cstdint>
#include <string>

#include "penstock/train/trainer.h"

namespace penstock::run {

// `bytes` bytes that continue `prompt`, drawn at temperature 0.8 from a generator of its own seeded
// with `seed`.  Collective over the ranks of each replica; the text is returned on every rank.
// REQUIRES: the prompt is as long as the model's sequence, on every rank.
// Throws: NumericsError, on the last stage's rank, for an output that is not finite.
std::string generate(train::Trainer& trainer, const std::string& prompt, std::int64_t bytes,
                     std::int64_t seed);

}  // namespace penstock::run
