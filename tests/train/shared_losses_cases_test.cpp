// Situations in which a loss that ranks share, or their batches, could be something else than one
// process's; and what one rank throws: each as a sentence.
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <string>
#include <vector>

#include "penstock/core/error.h"
#include "tests/train/own_layers.h"

namespace penstock::train {
namespace {

using exchange::cut;
using exchange::kInvariant;
using exchange::kPartial;
using exchange::kReplicated;
using testing_support::message_of;

// The targets alone are other ones, or the inputs, or samples that nothing is trained on.
TEST(SharedLayersCases, BatchesThatAreNotTheSameAreFoundByEveryCallAndTrainNothing) {
  const Batch2 batch = rows_batch();
  const at::Tensor input = batch.inputs[0], target = batch.targets[0];
  const std::string expected = "ranks 2 and 3 share layers and were given different batches";
  SharedCase made = on(2, 1, 2, between_linears({copies(), columns()}));
  const double loss = computed(made, {batch}).report.loss;
  with_trainers(made, [&](Trainer& trainer, std::int32_t rank) {
    const at::Tensor other = rank == 3 ? target + 1 : target;
    const std::string of_step = message_of([&] { trainer.step(input, other); });
    EXPECT_NE(of_step.find(expected), std::string::npos) << of_step;
    const std::string of_evaluation = message_of([&] { trainer.evaluate(input, other); });
    EXPECT_NE(of_evaluation.find(expected), std::string::npos) << of_evaluation;
    const at::Tensor fewer = rank == 1 ? input.slice(0, 0, 7) : input;
    const std::string of_inference = message_of([&] { trainer.infer(fewer); });
    EXPECT_NE(of_inference.find("ranks 0 and 1 share layers"), std::string::npos) << of_inference;
    EXPECT_EQ(step(trainer, batch).loss, loss);
  });
}

// Throws on one rank, in a piece behind which the others wait for its summand.
class Throws : public Copies {
 public:
  explicit Throws(const nn::Making& making) : Copies(making), is_last_(making.share.index == 1) {}
  nn::Values forward_piece(std::size_t, const nn::Values& x) override {
    if (is_last_ && x[0].abs().max().item<double>() > 100) throw Error("a value is above 100");
    return is_last_ ? x[0] * 0.25 : x[0] * 0.75;
  }

 private:
  bool is_last_;
};

TEST(SharedLayersCases, WhatOneRankThrowsBetweenExchangesIsToldOnAllAndTheNextStepTrains) {
  const nn::LayerSpec throws = nn::layer_in_pieces<Throws>(
      "throws", {{.takes = {kReplicated},
                  .gives = {kPartial},
                  .behind = {{.value = 0, .before = kPartial, .after = kInvariant}}}});
  const SharedCase made = between_linears({copies(), throws});
  const Batch2 batch = rows_batch();
  const Batch2 large = {batch.inputs[0] * 1e4, batch.targets};
  with_trainers(on(1, 2, 2, made), [&](Trainer& trainer, std::int32_t) {
    const std::string message = message_of([&] { step(trainer, large); });
    EXPECT_NE(message.find("layer \"throws\": a value is above 100"), std::string::npos) << message;
    EXPECT_LT(step(trainer, batch).loss, 10.0);
  });
}

// An optimizer of a user's, which may divide an update by its parameter's norm.
class OfWholes : public torch::optim::Optimizer {
 public:
  explicit OfWholes(std::vector<at::Tensor> parameters)
      : Optimizer(std::move(parameters), std::make_unique<torch::optim::SGDOptions>(0.01)) {}
  at::Tensor step(LossClosure) override { return {}; }
};

TEST(SharedLayersCases, AnOptimizerOfWholeParametersIsRefusedWhereRanksHaveParts) {
  const Batch2 batch = rows_batch();
  const auto step_with = [&](Trainer& trainer, std::int32_t) {
    OfWholes optimizer(trainer.parameters());
    trainer.step(batch.inputs, batch.targets, optimizer);
  };
  const SharedCase made = between_linears({copies(), columns()});
  EXPECT_EQ(messages_of(on(1, 1, 1, made), step_with).front(), "no error");
  for (const std::string& message : messages_of(on(1, 1, 2, made), step_with)) {
    EXPECT_NE(message.find("may look at whole parameters, and ranks that share layers update parts "
                           "of them"),
              std::string::npos)
        << message;
  }
}

// What a head says to be its part of the logits, and is all of them.
class WholeHead : public nn::LayerInPieces {
 public:
  explicit WholeHead(const nn::Making&)
      : LayerInPieces(2), weight_(register_parameter("weight", whole_parameter({7, kWide}))) {}
  nn::Values forward_piece(std::size_t piece, const nn::Values& x) override {
    return piece == 0 ? x[0] : at::linear(x[0], weight_);
  }

 private:
  at::Tensor weight_;
};

TEST(SharedLayersCases, AHeadThatGivesAllLogitsAsItsPartIsRefused) {
  const nn::LayerSpec head = nn::layer_in_pieces<WholeHead>(
      "head", {{.takes = {kInvariant},
                .gives = {kInvariant},
                .behind = {{.value = 0, .before = kInvariant, .after = kReplicated}}},
               {.takes = {kReplicated},
                .gives = {cut(/*dimension=*/2, /*whole=*/7)},
                .parameters = {"weight"}}});
  const SharedCase made{.options = sgd_options(),
                        .layers = {nn::layer<torch::nn::Linear>("first", kWide, kWide), head},
                        .loss = nn::token_loss(7)};
  const Batch2 batch = {at::rand({8, 5, kWide}), at::randint(7, {8, 5}, at::kLong)};
  for (const std::string& message :
       messages_of(on(1, 1, 2, made), [&](Trainer& trainer, auto) { step(trainer, batch); })) {
    EXPECT_NE(message.find("the loss is given logits of 7 tokens, and this rank's part of 7 has "),
              std::string::npos)
        << message;
  }
}

// Cross-entropy against targets of which a tenth is spread over all classes.
class SmoothedLoss : public nn::SharedLoss {
 public:
  SmoothedLoss(std::int64_t classes, const partition::Share& share)
      : classes_(classes), here_(partition::part_of(classes, share)) {}
  nn::Values run_piece(std::size_t piece, const nn::Values& x) const override {
    if (piece == 0) return {x[0], x[1], x[0].detach().amax(1)};
    if (piece == 2) {
      const at::Tensor sums = x[0];
      const at::Tensor of_target = 0.9 * sums[1] + 0.1 / static_cast<double>(classes_) * sums[2];
      return (sums[0].log() + x[2] - of_target).mean();
    }
    const at::Tensor mine = x[1] - here_.first;
    const at::Tensor is_here = (mine >= 0).logical_and(mine < here_.count);
    const at::Tensor place = mine.clamp(0, here_.count - 1).unsqueeze(1);
    const at::Tensor of_target = x[0].gather(1, place).squeeze(1).masked_fill(~is_here, 0);
    const at::Tensor exponentials = (x[0] - x[2].unsqueeze(1)).exp().sum(1);
    return {at::stack({exponentials, of_target, x[0].sum(1)}), x[1], x[2]};
  }

 private:
  std::int64_t classes_;
  Interval here_;
};

TEST(SharedLayersCases, SmoothedTargetsAreSpreadOverTheClassesOfAllRanks) {
  const auto whole = [](const at::Tensor& logits, const at::Tensor& targets) {
    return at::cross_entropy_loss(logits, targets, {}, at::Reduction::Mean, -100, 0.1);
  };
  const exchange::Pieces pieces = {
      {.takes = {kFeatures, kInvariant},
       .gives = {kFeatures, kInvariant, exchange::kCandidates},
       .behind = {{.value = 2, .before = exchange::kCandidates, .after = kInvariant}}},
      {.takes = {kFeatures, kInvariant, kInvariant},
       .gives = {kPartial, kInvariant, kInvariant},
       .behind = {{.value = 0, .before = kPartial, .after = kInvariant}}},
      {.takes = {kInvariant, kInvariant, kInvariant}, .gives = {kInvariant}}};
  SharedCase made{.options = sgd_options()};
  made.loss = nn::Loss(whole).in_pieces({.pieces = pieces, .make = [](const auto& share) {
                                           return std::make_shared<SmoothedLoss>(kWide, share);
                                         }});
  made.layers = {
      nn::layer<torch::nn::Linear>("first", kWide, kWide), copies(),
      nn::layer_in_pieces<Columns>("head", {{.takes = {kReplicated},
                                             .gives = {kFeatures},
                                             .parameters = {"linear.weight", "linear.bias"}}})};
  // Logits of some hundreds: the exponential of one is no float.
  const std::vector<Batch2> batches = {
      {(at::rand({8, kWide}) - 0.5) * 2000, at::randint(kWide, {8}, at::kLong)}};
  const Computed one = computed(on(1, 1, 1, made), batches);
  EXPECT_GT(one.report.loss, 50.0);
  for (const std::int32_t tensor : {2, 4}) {
    expect_same(computed(on(1, 1, tensor, made), batches), one, /*bound=*/3e-3);
  }
}

}  // namespace
}  // namespace penstock::train
