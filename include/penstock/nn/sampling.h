// The next token of a text, chosen by a model's logits.
//
// Generating calls it on the rank that has them.  Knows no model.
// Source: Fan et al., top-k (2018); Holtzman et al., top-p (2020).  As in transformers, the
// temperature comes first, then top-k, then top-p over what is left.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace penstock::nn {

struct SamplingOptions {
  double temperature = 0.0;  // 0: the token with the largest logit, the first of equal ones.
  std::int64_t top_k = 0;    // Number of likeliest tokens to choose from; 0: all.
  double top_p = 1.0;  // Probability of the fewest likeliest tokens to choose from, in (0, 1].
};

// Shapes: logits [vocabulary], of any floating type.
// Throws: NumericsError for logits that are not finite.
std::int64_t next_token(const at::Tensor& logits, const SamplingOptions& options,
                        at::Generator& generator);

}  // namespace penstock::nn
