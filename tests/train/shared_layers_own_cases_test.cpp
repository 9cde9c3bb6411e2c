// Situations in which layers of a user's own that ranks share could train on something else than
// one process: each as a sentence.
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "penstock/runtime/nn/dropout.h"
#include "tests/support/column_then_row.h"
#include "tests/train/own_layers.h"

namespace penstock::train {
namespace {

using exchange::cut;
using exchange::kInvariant;
using exchange::kPartial;
using exchange::kReplicated;
using testing_support::message_of;
using testing_support::same_bits;

constexpr std::int64_t kHidden = 9;  // No multiple of 2.
constexpr std::int64_t kLatent = 4;

// x + sigmoid(x g) W2 relu(W1 D x).  D and g are whole on every rank, wherever they are used.
class Latent : public nn::LayerInPieces {
 public:
  Latent(const nn::Making& making, std::size_t pieces)
      : LayerInPieces(pieces),
        down_(register_parameter("down", whole_parameter({kLatent, kWide}))),
        gate_(register_parameter("gate", whole_parameter({1, kWide}))),
        in_(register_module("in",
                            std::make_shared<nn::ColumnLinear>(
                                making, nn::SharedLinearOptions{.in = kLatent, .out = kHidden}))),
        out_(register_module(
            "out",
            std::make_shared<nn::RowLinear>(
                making, nn::SharedLinearOptions{.in = kHidden, .out = kWide, .bias = false}))) {}

 protected:
  at::Tensor latent(const at::Tensor& x) const { return at::linear(x, down_); }
  at::Tensor gate(const at::Tensor& x) const { return at::sigmoid(at::linear(x, gate_)); }
  at::Tensor summand(const at::Tensor& latent) const {
    return out_->summand(at::relu(in_->forward(latent)));
  }

 private:
  at::Tensor down_;
  at::Tensor gate_;
  std::shared_ptr<nn::ColumnLinear> in_;
  std::shared_ptr<nn::RowLinear> out_;
};

const std::vector<std::string> kCutParameters = {"in.weight", "in.bias", "out.weight"};

std::vector<std::string> with_cut_parameters(std::vector<std::string> names) {
  names.insert(names.end(), kCutParameters.begin(), kCutParameters.end());
  return names;
}

// Every rank computes the latent and the gate for its own features alone.
class ForItsFeatures : public Latent {
 public:
  explicit ForItsFeatures(const nn::Making& making) : Latent(making, 3) {}
  nn::Values forward_piece(std::size_t piece, const nn::Values& x) override {
    if (piece == 0) return {x[0], x[0]};
    if (piece == 1) return {x[0], gate(x[1]) * summand(latent(x[1]))};
    return x[0] + x[1];
  }
};
nn::LayerSpec for_its_features() {
  return nn::layer_in_pieces<ForItsFeatures>(
      "latent", {{.takes = {kInvariant},
                  .gives = {kInvariant, kInvariant},
                  .behind = {{.value = 1, .before = kInvariant, .after = kReplicated}}},
                 {.takes = {kInvariant, kReplicated},
                  .gives = {kInvariant, kPartial},
                  .behind = {{.value = 1, .before = kPartial, .after = kInvariant}},
                  .parameters = with_cut_parameters({"down", "gate"})},
                 {.takes = {kInvariant, kInvariant}, .gives = {kInvariant}}});
}

// Every rank computes the whole latent and the whole gate, as the others do.
class ForAll : public Latent {
 public:
  explicit ForAll(const nn::Making& making) : Latent(making, 3) {}
  nn::Values forward_piece(std::size_t piece, const nn::Values& x) override {
    if (piece == 0) return {x[0], latent(x[0])};
    if (piece == 1) return {x[0], summand(x[1])};
    return x[0] + gate(x[0]) * x[1];
  }
};
nn::LayerSpec for_all() {
  return nn::layer_in_pieces<ForAll>(
      "latent",
      {{.takes = {kInvariant},
        .gives = {kInvariant, kInvariant},
        .behind = {{.value = 1, .before = kInvariant, .after = kReplicated}},
        .parameters = {"down"}},
       {.takes = {kInvariant, kReplicated},
        .gives = {kInvariant, kPartial},
        .behind = {{.value = 1, .before = kPartial, .after = kInvariant}},
        .parameters = kCutParameters},
       {.takes = {kInvariant, kInvariant}, .gives = {kInvariant}, .parameters = {"gate"}}});
}

// Every rank computes the latent and the gate of its rows of the batch.
constexpr exchange::Held kRows = cut(/*dimension=*/0);
class ForItsRows : public Latent {
 public:
  explicit ForItsRows(const nn::Making& making) : Latent(making, 4) {}
  nn::Values forward_piece(std::size_t piece, const nn::Values& x) override {
    if (piece == 0) return x[0];
    if (piece == 1) return {x[0], latent(x[0])};
    if (piece == 2) return {x[0], summand(x[1])};
    return x[0] + gate(x[0]) * x[1];
  }
};
nn::LayerSpec for_its_rows() {
  return nn::layer_in_pieces<ForItsRows>(
      "latent", {{.takes = {kInvariant},
                  .gives = {kInvariant},
                  .behind = {{.value = 0, .before = kInvariant, .after = kRows}}},
                 {.takes = {kRows},
                  .gives = {kRows, kRows},
                  .behind = {{.value = 1, .before = kRows, .after = kReplicated}},
                  .parameters = {"down"}},
                 {.takes = {kRows, kReplicated},
                  .gives = {kRows, kPartial},
                  .behind = {{.value = 1, .before = kPartial, .after = kRows}},
                  .parameters = kCutParameters},
                 {.takes = {kRows, kRows},
                  .gives = {kRows},
                  .behind = {{.value = 0, .before = kRows, .after = kInvariant}},
                  .parameters = {"gate"}}});
}

TEST(SharedLayersCases, AWeightThatAllRanksHaveIsSummedWhereTheyDoTheirShareOfItsWorkAlone) {
  const std::vector<Batch2> batches = {rows_batch()};
  const Computed one = computed(on(1, 1, 1, between_linears({for_its_features()})), batches);
  for (const auto& make : {for_its_features, for_all, for_its_rows}) {
    const SharedCase made = between_linears({make()});
    expect_same(computed(on(1, 1, 1, made), batches), one);
    for (const auto& [pipe, data, tensor] :
         {std::tuple{1, 1, 2}, {1, 1, 3}, {3, 1, 2}, {1, 2, 2}}) {
      SCOPED_TRACE(str("pipe ", pipe, " data ", data, " tensor ", tensor));
      expect_same(computed(on(pipe, data, tensor, made), batches), one);
    }
  }
}

// Takes a part of x's features, scales it and gathers it: for the same work on all ranks, or for
// the share that each does of it.
class Scaled : public nn::LayerInPieces {
 public:
  explicit Scaled(const nn::Making& making) : LayerInPieces(2) {
    scale_ = register_part("scale", making, {kWide}, {});
    const at::NoGradGuard no_grad;
    scale_.copy_(nn::part_of(whole_parameter({kWide}), nn::cut_of(cuts(), "scale")));
  }
  nn::Values forward_piece(std::size_t piece, const nn::Values& x) override {
    return piece == 0 ? x[0] : x[0] * scale_;
  }

 private:
  at::Tensor scale_;
};
nn::LayerSpec scaled(const exchange::Held& gathered) {
  return nn::layer_in_pieces<Scaled>(
      "scaled", {{.takes = {kInvariant},
                  .gives = {kInvariant},
                  .behind = {{.value = 0, .before = kInvariant, .after = kFeatures}}},
                 {.takes = {kFeatures},
                  .gives = {kFeatures},
                  .behind = {{.value = 0, .before = kFeatures, .after = gathered}},
                  .parameters = {"scale"}}});
}

TEST(SharedLayersCases, WhatIsGatheredHasTheGradientOfTheSameWorkOnceAndOfSharesSummed) {
  const std::vector<Batch2> batches = {rows_batch()};
  for (const auto& middle : {std::vector{scaled(kInvariant)}, {scaled(kReplicated), columns()}}) {
    const SharedCase made = between_linears(middle);
    const Computed one = computed(on(1, 1, 1, made), batches);
    for (const std::int32_t tensor : {2, 4}) {
      expect_same(computed(on(1, 1, tensor, made), batches), one);
    }
  }
}

// x + dropped(W2 relu(dropped W1 x) + b): features that ranks share are dropped, and what is whole.
class Dropping : public nn::LayerInPieces {
 public:
  explicit Dropping(const nn::Making& making)
      : LayerInPieces(3),
        in_(register_module("in",
                            std::make_shared<nn::ColumnLinear>(
                                making, nn::SharedLinearOptions{.in = kWide, .out = kHidden}))),
        out_(register_module("out",
                             std::make_shared<nn::RowLinear>(
                                 making, nn::SharedLinearOptions{.in = kHidden, .out = kWide}))),
        of_features_(register_module("of_features", nn::Dropout(0.4))),
        of_sums_(register_module("of_sums", nn::Dropout(0.4))),
        here_(partition::part_of(kHidden, making.share)) {}
  nn::Values forward_piece(std::size_t piece, const nn::Values& x) override {
    if (piece == 0) return {x[0], x[0]};
    if (piece == 2) return x[0] + of_sums_->forward(out_->add_bias(x[1]));
    const at::Tensor hidden = of_features_->forward_part(in_->forward(x[1]), here_, kHidden);
    return {x[0], out_->summand(at::relu(hidden))};
  }

 private:
  std::shared_ptr<nn::ColumnLinear> in_;
  std::shared_ptr<nn::RowLinear> out_;
  nn::Dropout of_features_;
  nn::Dropout of_sums_;
  Interval here_;
};

nn::LayerSpec dropping(const std::string& name) {
  return nn::layer_in_pieces<Dropping>(name, testing_support::column_then_row());
}

TEST(SharedLayersCases, DropoutIsThatOfOneProcessOnAnyNumberOfRanksAndOtherOnEachReplica) {
  const std::vector<Batch2> batches = {rows_batch()};
  const SharedCase made = between_linears(
      {nn::layer<nn::Dropout>("dropout", 0.4), dropping("dropping 0"), dropping("dropping 1")});
  const Computed one = computed(on(1, 1, 1, made), batches);
  for (const auto& [pipe, data, tensor] :
       {std::tuple{1, 1, 2}, {1, 1, 3}, {2, 1, 2}, {1, 2, 2}, {1, 4, 2}}) {
    SCOPED_TRACE(str("pipe ", pipe, " data ", data, " tensor ", tensor));
    SharedCase shared = on(pipe, data, tensor, made);
    expect_same(computed(shared, batches), one);
    shared.options.checkpointing.interval = 1;
    expect_same(computed(shared, batches), one);
  }
}

// Uses parameters that all ranks have as they ask for: `first` on rank 0 alone, `second` on none.
class UsedByOne : public nn::LayerInPieces {
 public:
  explicit UsedByOne(const nn::Making& making)
      : LayerInPieces(1),
        is_first_(making.share.index == 0),
        all_(register_parameter("all", whole_parameter({kWide, kWide}))),
        first_(register_parameter("first", whole_parameter({kWide, kWide}))),
        second_(register_parameter("second", whole_parameter({kWide}))),
        here_(partition::part_of(kWide, making.share)) {}
  nn::Values forward_piece(std::size_t, const nn::Values& x) override {
    const auto mine = [&](const at::Tensor& of) { return of.narrow(1, here_.first, here_.count); };
    const at::Tensor summand = at::linear(mine(x[0]), mine(all_));
    return is_first_ ? summand + at::linear(x[0], first_) : summand;
  }

 private:
  bool is_first_;
  at::Tensor all_;
  at::Tensor first_;
  at::Tensor second_;
  Interval here_;
};

SharedCase used_by_one() {
  const nn::LayerSpec used = nn::layer_in_pieces<UsedByOne>(
      "used", {{.takes = {kReplicated},
                .gives = {kPartial},
                .behind = {{.value = 0, .before = kPartial, .after = kInvariant}},
                .parameters = {"all", "first", "second"}}});
  return between_linears({copies(), used});
}

TEST(SharedLayersCases, AParameterThatOneRankAloneUsesHasItsGradientOnAll) {
  const std::vector<Batch2> batches = {rows_batch()};
  for (const int stage : {0, 1, 3}) {
    SCOPED_TRACE(str("ZeRO ", stage));
    SharedCase made = used_by_one();
    made.options.zero.stage = static_cast<ZeroStage>(stage);
    const Computed one = computed(on(1, 1, 1, made), batches);
    EXPECT_FALSE(one.gradients.contains("used.second"));
    for (const auto& [data, tensor] : {std::pair{1, 2}, {2, 2}, {1, 3}}) {
      const SharedCase shared = on(1, data, tensor, made);
      expect_same(computed(shared, batches), one);
      // Each updates what it has of it: Together compares their parameters.
      Together together;
      with_trainers(shared, [&](Trainer& trainer, std::int32_t) {
        step(trainer, batches[0]);
        add_parameters(together, trainer);
      });
    }
  }
}

// The same weight in a layer whose work all ranks do, and in one of which each does its share.
TEST(SharedLayersCases, AWeightTiedToOneThatIsNotSharedIsSummedForItsSharesAlone) {
  const std::vector<Batch2> batches = {rows_batch()};
  SharedCase made = used_by_one();
  made.layers[0] = nn::TiedLayerSpec("weight", made.layers[0], {"weight"});
  made.layers[2] = nn::TiedLayerSpec("weight", made.layers[2], {"all"});
  const Computed one = computed(on(1, 1, 1, made), batches);
  EXPECT_FALSE(one.gradients.contains("used.all"));
  for (const auto& [pipe, data, stage] :
       {std::tuple{1, 1, 0}, {2, 1, 0}, {1, 2, 1}, {2, 2, 2}, {2, 2, 3}}) {
    SCOPED_TRACE(str("pipe ", pipe, " data ", data, " ZeRO ", stage));
    made.options.zero.stage = static_cast<ZeroStage>(stage);
    expect_same(computed(on(pipe, data, 2, made), batches), one);
  }
}

// The gradients of one type are one message: on the rank that has none, too.
TEST(SharedLayersCases, AShortParameterThatOneRankAloneUsesIsSummedInFloat) {
  const std::vector<Batch2> batches = {rows_batch()};
  SharedCase made = used_by_one();
  made.options.precision = {.type = at::kBFloat16, .sums = at::kFloat};
  const Computed one = computed(on(1, 1, 1, made), batches);
  for (const std::int32_t data : {1, 2}) {
    const Computed shared = computed(on(1, data, 2, made), batches);
    expect_same(shared.gradients, one.gradients, /*bound=*/0.05);  // bf16 has 2^-8 of a number.
  }
}

TEST(SharedLayersCases, AParameterThatOneRankAloneTrainsIsToldBeforeTheFirstStep) {
  SharedCase made = on(1, 1, 2, used_by_one());
  made.layers = with_frozen(made.layers, [](const std::string& name, const nn::Making& making) {
    return name != "used.all" || making.share.index == 0;
  });
  const std::string message = message_of([&] { computed(made, {rows_batch()}); });
  EXPECT_TRUE(
      message.starts_with("ranks 0 and 1 do not run the same thing: rank 0 has parameter "
                          "used.all="))
      << message;
  EXPECT_NE(message.find(", rank 1 has frozen parameter used.all="), std::string::npos) << message;
}

// A scale at which the gradients of rank 1's features alone are too large for fp16: its hidden
// features are 200, and count for nothing.
TEST(SharedLayersCases, AnOverflowOnOneRankSkipsTheStepOnAll) {
  SharedCase made = on(1, 1, 2, between_linears({dropping("mlp")}));
  made.options.precision = {.type = at::kHalf,
                            .gradient_scale = {.enabled = true, .initial_scale_power = 13}};
  const Batch2 batch = rows_batch();
  with_trainers(made, [&](Trainer& trainer, std::int32_t rank) {
    const std::int64_t of_rank_0 = partition::part_of(kHidden, {.index = 0, .of = 2}).count;
    at::Tensor bias = trainer.get("mlp.in.bias"), out = trainer.get("mlp.out.weight");
    bias.slice(0, of_rank_0).fill_(200);
    out.slice(1, of_rank_0).fill_(0);
    trainer.set("mlp.in.bias", bias);
    trainer.set("mlp.out.weight", out);
    StepReport report = compute(trainer, {batch});
    EXPECT_TRUE(report.skipped);
    for (const PartOfParameter& each : trainer.gradients()) {
      const bool overflows = rank == 1 && each.name == "mlp.out.weight";
      EXPECT_EQ(each.part.grad().isfinite().all().item<bool>(), !overflows) << each.name;
    }
    trainer.update(report);
    EXPECT_TRUE(report.skipped);
    EXPECT_TRUE(same_bits(trainer.get("mlp.out.weight"), out));
    EXPECT_TRUE(same_bits(trainer.get("mlp.in.bias"), bias));
    for (int i = 0; i < 12 && report.skipped; ++i) report = step(trainer, batch);
    EXPECT_FALSE(report.skipped);
    EXPECT_TRUE(std::isfinite(report.grad_norm));
    EXPECT_FALSE(same_bits(trainer.get("mlp.out.weight"), out));
  });
}

}  // namespace
}  // namespace penstock::train
