// Batches of tokens for decoders, some of whose targets do not count.
//
// Tests of decoders on several ranks train with them.  Knows no models.
#pragma once
#include <ATen/ops/randint.h>

#include <cstdint>
#include <vector>

#include "penstock/core/ignored_target.h"
#include "tests/train/model_kinds.h"

namespace penstock::train {

// Text of so many tokens a sample, and the tokens that follow.
inline Batch2 with_masked_targets(std::int64_t samples, std::int64_t length,
                                  std::int64_t vocabulary) {
  const at::Tensor text = at::randint(vocabulary, {samples, length + 1}, at::kLong);
  const at::Tensor targets = text.slice(1, 1).contiguous();
  for (std::int64_t i = 0; i < samples; ++i) {  // Not as many in each microbatch.
    targets[i].slice(0, 0, i % length).fill_(kIgnoredTarget);
  }
  return {text.slice(1, 0, -1).contiguous(), targets};
}

}  // namespace penstock::train
