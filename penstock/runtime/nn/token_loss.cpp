#include "penstock/nn/token_loss.h"

#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gather.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/ignored_target.h"
#include "penstock/runtime/nn/own_backward.h"
#include "penstock/runtime/nn/passes/passes.h"
#include "penstock/runtime/nn/token_rows.h"

namespace penstock::nn {
namespace {

// Rows [first, end) at a time.
template <class Work>
void by_chunks(const at::Tensor& logits, const Work& work) {
  const std::int64_t rows = rows_at_once(logits);
  for (std::int64_t first = 0; first < logits.size(0); first += rows) {
    work(first, std::min(first + rows, logits.size(0)));
  }
}

// What the backward needs.
struct Rows {
  at::Tensor logits;    // [rows, vocabulary]
  at::Tensor targets;   // [rows, 1]; 0 where none counts.
  at::Tensor counts;    // [rows], bool.
  at::Tensor log_sums;  // [rows, 1], float: of the exponentials.
  at::Tensor counted;   // How many count, float.
};

// The logarithms at the targets, [rows, 1], by torch's operators.  The logarithm of the sum is what
// the largest logit has lost.
at::Tensor logarithms_by_chunks(Rows& rows) {
  const at::Tensor largest = rows.logits.amax(1, /*keepdim=*/true).to(at::kFloat);
  const at::Tensor of_targets = at::empty_like(largest), of_largest = at::empty_like(largest);
  by_chunks(rows.logits, [&](std::int64_t first, std::int64_t end) {
    const auto chunk = [&](const at::Tensor& all) { return all.slice(0, first, end); };
    const at::Tensor logarithms = chunk(rows.logits).log_softmax(1, at::kFloat);
    at::Tensor to = chunk(of_targets), largest_to = chunk(of_largest);
    at::gather_out(to, logarithms, 1, chunk(rows.targets));
    at::amax_out(largest_to, logarithms, 1, /*keepdim=*/true);
  });
  rows.log_sums = largest - of_largest;
  return of_targets;
}

at::Tensor logarithms_in_one_pass(Rows& rows) {
  const at::Tensor of_targets = at::empty(rows.targets.sizes(), rows.logits.options());
  rows.log_sums = at::empty_like(of_targets);
  run(passes::kLoss,
      [&] {
        return passes::LossRows{.logits = passes::floats(rows.logits),
                                .targets = passes::numbers(rows.targets),
                                .of_targets = passes::floats(of_targets),
                                .log_sums = passes::floats(rows.log_sums),
                                .rows = rows.logits.size(0),
                                .width = rows.logits.size(1)};
      },
      {rows.logits, rows.targets}, {of_targets, rows.log_sums});
  return of_targets;
}

at::Tensor sum_of_losses(Rows& rows) {
  const at::Tensor logarithms =
      passes::can_fuse({rows.logits}) ? logarithms_in_one_pass(rows) : logarithms_by_chunks(rows);
  return -logarithms.squeeze(1).masked_fill_(~rows.counts, 0).sum();
}

// (softmax - [is the target]) x factor / counted.
at::Tensor gradient_of(const Rows& rows, const at::Tensor& factor) {
  const bool nobody_reads = rows.logits.storage().use_count() == 1;
  const at::Tensor gradient = nobody_reads ? rows.logits : at::empty_like(rows.logits);
  const at::Tensor scale =
      (factor.to(at::kFloat) / rows.counted).expand_as(rows.counts).masked_fill(~rows.counts, 0);
  if (passes::can_fuse({rows.logits, scale})) {
    run(passes::kLossGradient,
        [&] {
          return passes::LossGradientRows{.logits = passes::floats(rows.logits),
                                          .targets = passes::numbers(rows.targets),
                                          .log_sums = passes::floats(rows.log_sums),
                                          .factors = passes::floats(scale),
                                          .output = passes::floats(gradient),
                                          .rows = rows.logits.size(0),
                                          .width = rows.logits.size(1)};
        },
        {rows.logits, rows.targets, rows.log_sums, scale}, {gradient});
    return gradient;
  }
  const bool in_place = nobody_reads && rows.logits.scalar_type() == at::kFloat;
  const at::Tensor minus_one = at::full({1, 1}, -1.0, scale.options());
  by_chunks(rows.logits, [&](std::int64_t first, std::int64_t end) {
    const at::Tensor logits = rows.logits.slice(0, first, end);
    const at::Tensor log_sums = rows.log_sums.slice(0, first, end);
    at::Tensor chunk = in_place ? logits.sub_(log_sums) : logits.sub(log_sums);  // Now of float.
    const at::Tensor targets = rows.targets.slice(0, first, end);
    chunk.exp_().scatter_add_(1, targets, minus_one.expand_as(targets));
    chunk.mul_(scale.slice(0, first, end).unsqueeze(1));
    if (!in_place) gradient.slice(0, first, end).copy_(chunk);
  });
  return gradient;
}

}  // namespace

at::Tensor mean_token_loss(const at::Tensor& logits, const at::Tensor& targets) {
  check_rows(logits, targets);
  const std::int64_t vocabulary = logits.size(-1);
  const at::Tensor is_wrong = any_wrong_target(targets, vocabulary);
  Rows rows;
  at::Tensor loss;
  {
    const torch::NoGradGuard no_grad;
    // No view of the logits: it would hold them, and their gradient would need memory of its own.
    rows = {.logits = logits.flatten(0, -2).variable_data(),
            .targets = targets.flatten().clamp(0, vocabulary - 1).unsqueeze(1),
            .counts = targets.flatten() != kIgnoredTarget};
    rows.counted = rows.counts.sum(at::kFloat);
    loss = (sum_of_losses(rows) / rows.counted).masked_fill_(is_wrong, kNotANumber);
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
