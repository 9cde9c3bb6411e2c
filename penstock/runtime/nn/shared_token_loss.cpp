// The cross-entropy of logits whose vocabulary ranks share.
#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/ignored_target.h"
#include "penstock/core/text.h"
#include "penstock/nn/token_loss.h"
#include "penstock/runtime/nn/block_sums.h"
#include "penstock/runtime/nn/own_backward.h"
#include "penstock/runtime/nn/token_rows.h"

namespace penstock::nn {
namespace {

// What the backward of this rank's part needs.  Rows are those of all targets.
struct PartOfRows {
  at::Tensor logits;   // [rows, this rank's vocabulary]
  at::Tensor targets;  // [rows, 1]: among this rank's tokens, or any where `is_here` says no.
  at::Tensor is_here;  // [rows, 1], bool: it has the target, which counts.
  at::Tensor largest;  // [rows, 1], float: of all ranks' logits.
};

template <class Work>
void by_rows(const at::Tensor& logits, const Work& work) {
  const std::int64_t rows = rows_at_once(logits);
  for (std::int64_t first = 0; first < logits.size(0); first += rows) {
    work(first, std::min(first + rows, logits.size(0)));
  }
}

// [2, rows], float: sums of exponentials behind the largest, and logits of the targets.
at::Tensor sums_of(const PartOfRows& part, std::int64_t blocks) {
  const at::Tensor exponentials = at::zeros({part.logits.size(0)}, part.largest.options());
  by_rows(part.logits, [&](std::int64_t first, std::int64_t end) {
    const at::Tensor chunk = part.logits.slice(0, first, end).to(at::kFloat);
    exponentials.slice(0, first, end)
        .copy_(sum_in_blocks((chunk - part.largest.slice(0, first, end)).exp_(), blocks));
  });
  const at::Tensor of_targets =
      part.logits.gather(1, part.targets).to(at::kFloat).masked_fill_(~part.is_here, 0);
  return at::stack({exponentials, of_targets.squeeze(1)});
}

// The gradient of each of the logits, from that of sums_of().
at::Tensor gradient_of(const PartOfRows& part, const at::Tensor& of_sums) {
  const bool nobody_reads = part.logits.storage().use_count() == 1;
  const bool in_place = nobody_reads && part.logits.scalar_type() == at::kFloat;
  const at::Tensor gradient = nobody_reads ? part.logits : at::empty_like(part.logits);
  const at::Tensor of_exponentials = of_sums.select(0, 0).unsqueeze(1);
  const at::Tensor of_targets = of_sums.select(0, 1).unsqueeze(1).masked_fill(~part.is_here, 0);
  by_rows(part.logits, [&](std::int64_t first, std::int64_t end) {
    const auto here = [&](const at::Tensor& all) { return all.slice(0, first, end); };
    const at::Tensor logits = here(part.logits), largest = here(part.largest);
    at::Tensor chunk = in_place ? logits.sub_(largest) : logits.sub(largest);  // Now of float.
    chunk.exp_().mul_(here(of_exponentials));
    chunk.scatter_add_(1, here(part.targets), here(of_targets));
    if (!in_place) here(gradient).copy_(chunk);
  });
  return gradient;
}

class SharedTokenLoss : public SharedLoss {
 public:
  SharedTokenLoss(std::int64_t vocabulary, const partition::Share& share)
      : vocabulary_(vocabulary),
        blocks_(std::max<std::int64_t>(1, exchange::kBlocks / share.of)),
        here_(partition::part_of(vocabulary, share)) {}

  // Values: logits, targets, the largest logits of rows.
  Values run_piece(std::size_t piece, const Values& values) const override {
    if (piece == 0) return {values[0], values[1], largest_of(values[0], values[1])};
    if (piece == 1) return {part_of_sums(values[0], values[1], values[2]), values[1], values[2]};
    return mean_of(values[0], values[1], values[2]);
  }

 private:
  // [rows, 1], float.
  at::Tensor largest_of(const at::Tensor& logits, const at::Tensor& targets) const {
    check_rows(logits, targets);
    if (logits.size(-1) != here_.count) {
      throw Error(penstock::str("the loss is given logits of ", logits.size(-1),
                                " tokens, and this rank's part of ", vocabulary_, " has ",
                                here_.count));
    }
    const torch::NoGradGuard no_grad;
    return logits.flatten(0, -2).amax(1, /*keepdim=*/true).to(at::kFloat);
  }

  at::Tensor part_of_sums(const at::Tensor& logits, const at::Tensor& targets,
                          const at::Tensor& largest) const {
    PartOfRows part;
    at::Tensor sums;
    {
      const torch::NoGradGuard no_grad;
      const at::Tensor of_all = targets.flatten().unsqueeze(1);
      const at::Tensor mine = of_all - here_.first;
      part = {.logits = logits.flatten(0, -2).variable_data(),
              .targets = mine.clamp(0, here_.count - 1),
              .is_here =
                  (mine >= 0).logical_and(mine < here_.count).logical_and(of_all != kIgnoredTarget),
              .largest = largest};
      sums = sums_of(part, blocks_);
    }
    auto of_inputs = [part, shape = logits.sizes().vec()](const Tensors& gradients) mutable {
      if (!part.logits.defined()) throw Error("the backward of a loss over tokens ran twice");
      const torch::NoGradGuard no_grad;
      const at::Tensor gradient = gradient_of(part, gradients[0]);
      part = {};
      return Tensors{gradient.view(shape)};
    };
    return with_own_backward({sums}, {logits}, {},
                             {.of_inputs = std::move(of_inputs),
                              .of_weights = [](const Tensors&) { return Tensors(); }})
        .front();
  }

  at::Tensor mean_of(const at::Tensor& sums, const at::Tensor& targets,
                     const at::Tensor& largest) const {
    const at::Tensor is_wrong = any_wrong_target(targets, vocabulary_);
    const at::Tensor counts = targets.flatten() != kIgnoredTarget;
    const at::Tensor losses = sums.select(0, 0).log() + largest.squeeze(1) - sums.select(0, 1);
    const at::Tensor mean = losses.masked_fill(~counts, 0).sum() / counts.sum(at::kFloat);
    return mean.masked_fill(is_wrong, kNotANumber);
  }

  std::int64_t vocabulary_;
  std::int64_t blocks_;  // Blocks of this rank's part, in which exponentials are added.
  Interval here_;
};

exchange::Pieces pieces_of(std::int64_t vocabulary) {
  using exchange::kInvariant;
  const exchange::Held logits = exchange::cut(/*dimension=*/2, vocabulary);
  return {{.takes = {logits, kInvariant},
           .gives = {logits, kInvariant, exchange::kCandidates},
           .behind = {{.value = 2, .before = exchange::kCandidates, .after = kInvariant}}},
          {.takes = {logits, kInvariant, kInvariant},
           .gives = {exchange::kPartial, kInvariant, kInvariant},
           .behind = {{.value = 0, .before = exchange::kPartial, .after = kInvariant}}},
          {.takes = {kInvariant, kInvariant, kInvariant}, .gives = {kInvariant}}};
}

}  // namespace

LossPieces pieces_of_token_loss(std::int64_t vocabulary) {
  return {.pieces = pieces_of(vocabulary),
          .make =
              [vocabulary](const auto& share) {
                return std::make_shared<SharedTokenLoss>(vocabulary, share);
              },
          .sums = exchange::Sums::InBlocks};
}

Loss token_loss(std::int64_t vocabulary) {
  return Loss(mean_token_loss).of_any_type().in_pieces(pieces_of_token_loss(vocabulary));
}

}  // namespace penstock::nn
