#include "penstock/nn/token_loss.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/nn/own_backward.h"

namespace penstock::nn {
namespace {

// Elements of a chunk, so that it stays in a cache or two.
constexpr std::int64_t kChunkElements = std::int64_t{1} << 19;

void check_targets(const at::Tensor& logits, const at::Tensor& targets) {
  if (logits.dim() != targets.dim() + 1 ||
      logits.sizes().slice(0, static_cast<std::size_t>(targets.dim())) != targets.sizes()) {
    throw Error(penstock::str("the loss of logits ", logits.sizes(),
                              " needs a target for each row; targets ", "are ", targets.sizes()));
  }
  const at::Tensor is_wrong =
      (targets != kIgnoredTarget).logical_and((targets < 0).logical_or(targets >= logits.size(-1)));
  if (!is_wrong.any().item<bool>()) return;
  throw Error(penstock::str("a target is ", targets.masked_select(is_wrong)[0].item<std::int64_t>(),
                            "; the model's vocabulary has ", logits.size(-1), " tokens"),
              {penstock::str("a target is a token, or ", kIgnoredTarget, " where none counts")});
}

// Rows [first, end) at a time.
template <class Work>
void by_chunks(const at::Tensor& logits, const Work& work) {
  const std::int64_t rows = std::max<std::int64_t>(1, kChunkElements / logits.size(1));
  for (std::int64_t first = 0; first < logits.size(0); first += rows) {
    work(first, std::min(first + rows, logits.size(0)));
  }
}

// What the backward needs.
struct Rows {
  at::Tensor logits;    // [rows, vocabulary]
  at::Tensor targets;   // [rows, 1]; 0 where none counts.
  at::Tensor counts;    // [rows], bool.
  at::Tensor log_sums;  // [rows], float: of the exponentials.
  at::Tensor counted;   // How many count, float.
};

at::Tensor sum_of_losses(Rows& rows) {
  rows.log_sums = at::empty({rows.logits.size(0)}, rows.logits.options().dtype(at::kFloat));
  at::Tensor losses = at::empty_like(rows.log_sums);
  by_chunks(rows.logits, [&](std::int64_t first, std::int64_t end) {
    const at::Tensor chunk = rows.logits.slice(0, first, end).to(at::kFloat);
    rows.log_sums.slice(0, first, end).copy_(chunk.logsumexp(1));
    losses.slice(0, first, end)
        .copy_(chunk.gather(1, rows.targets.slice(0, first, end)).squeeze(1));
  });
  return (rows.log_sums - losses).masked_fill_(~rows.counts, 0).sum();
}

// (softmax - [is the target]) x factor / counted.
at::Tensor gradient_of(const Rows& rows, const at::Tensor& factor) {
  const bool nobody_reads = rows.logits.storage().use_count() == 1;
  const at::Tensor gradient = nobody_reads ? rows.logits : at::empty_like(rows.logits);
  const at::Tensor scale =
      (factor.to(at::kFloat) / rows.counted).expand_as(rows.counts).masked_fill(~rows.counts, 0);
  by_chunks(rows.logits, [&](std::int64_t first, std::int64_t end) {
    const at::Tensor to = gradient.slice(0, first, end);
    at::Tensor chunk = rows.logits.slice(0, first, end);
    const bool in_place = nobody_reads && chunk.scalar_type() == at::kFloat;
    if (!in_place) chunk = chunk.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    chunk.sub_(rows.log_sums.slice(0, first, end).unsqueeze(1)).exp_();
    const at::Tensor targets = rows.targets.slice(0, first, end);
    chunk.scatter_add_(1, targets, at::full(targets.sizes(), -1.0, chunk.options()));
    chunk.mul_(scale.slice(0, first, end).unsqueeze(1));
    if (!in_place) to.copy_(chunk);
  });
  return gradient;
}

}  // namespace

at::Tensor mean_token_loss(const at::Tensor& logits, const at::Tensor& targets) {
  check_targets(logits, targets);
  Rows rows;
  at::Tensor loss;
  {
    const torch::NoGradGuard no_grad;
    // No view of the logits: it would hold them, and their gradient would need memory of its own.
    rows = {.logits = logits.flatten(0, -2).variable_data(),
            .targets = targets.flatten().clamp_min(0).unsqueeze(1),
            .counts = targets.flatten() != kIgnoredTarget};
    rows.counted = rows.counts.sum(at::kFloat);
    loss = sum_of_losses(rows) / rows.counted;
  }
  auto of_inputs = [rows, shape = logits.sizes().vec()](const Tensors& gradients) mutable {
    if (!rows.logits.defined()) throw Error("the backward of a loss over tokens ran twice");
    const at::Tensor gradient = gradient_of(rows, gradients[0]);
    rows = {};
    return Tensors{gradient.view(shape)};
  };
  return with_own_backward({loss}, {logits}, {},
                           {.of_inputs = std::move(of_inputs),
                            .of_weights = [](const Tensors&) { return Tensors(); }})
      .front();
}

}  // namespace penstock::nn
