#include "penstock/nn/sampling.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/softmax.h>

#include <algorithm>
#include <limits>

#include "penstock/core/error.h"

namespace penstock::nn {

std::int64_t next_token(const at::Tensor& logits, const SamplingOptions& options,
                        at::Generator& generator) {
  const at::Tensor wide = logits.cpu().to(at::kFloat);
  if (!at::isfinite(wide).all().item<bool>()) {
    throw NumericsError("generating: the model's output is not finite");
  }
  if (options.temperature == 0) return wide.argmax().item<std::int64_t>();
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  auto [sorted, tokens] =
      (wide / options.temperature).sort(/*stable=*/true, 0, /*descending=*/true);
  if (options.top_k > 0) sorted.slice(0, std::min(options.top_k, sorted.size(0))).fill_(kNever);
  if (options.top_p < 1) {
    const at::Tensor likely = sorted.softmax(0);
    // What the likelier ones have together: the first token always stays.
    sorted.masked_fill_(likely.cumsum(0) - likely >= options.top_p, kNever);
  }
  const at::Tensor place = at::multinomial(sorted.softmax(0), 1, /*replacement=*/false, generator);
  return tokens[place.item<std::int64_t>()].item<std::int64_t>();
}

}  // namespace penstock::nn
