// Layers that are made with a share of their weights: the shares together are the whole layer.
#include "penstock/runtime/nn/making.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/linear.h>

#include "penstock/nn/decoder.h"
#include "penstock/runtime/nn/model.h"
#include "tests/support/message_of.h"
#include "tests/support/same_bits.h"

namespace penstock::nn {
namespace {

using partition::Cut;
using partition::Share;
using testing_support::message_of;
using testing_support::same_bits;

// A matrix that is cut by rows.
class Rows : public CutModule {
 public:
  explicit Rows(const Making& making)
      : weight_(register_part("weight", making, {7, 6}, {.dimension = 0})) {}
  at::Tensor forward(const at::Tensor& x) const { return at::linear(x, weight_); }

 private:
  at::Tensor weight_;
};

// One that is cut by rows in a module of its own, one that is cut by columns, and a bias that every
// share has.
class Cutted : public Layer {
 public:
  explicit Cutted(const Making& making)
      : rows_(register_module("rows", std::make_shared<Rows>(making))),
        columns_(register_part("columns", making, {5, 9}, {.dimension = 1})),
        bias_(register_parameter("bias", making.parameter({4}))) {}
  at::Tensor forward(const at::Tensor& x) override { return rows_->forward(x); }

 private:
  std::shared_ptr<Rows> rows_;
  at::Tensor columns_, bias_;
};

// The layer, filled as decoders are.
LayerSpec filled(const FillParameter& fill) {
  LayerSpec spec{.meta = {"cut", "Cutted", kNotCounted}};
  spec.make = [fill](const Making& making) {
    auto layer = std::make_shared<Cutted>(making);
    const torch::NoGradGuard no_grad;
    const Cuts cuts = cuts_in(*layer);
    for (auto& each : layer->named_parameters()) {
      fill(each.key(), each.value(), cut_of(cuts, each.key()));
    }
    return layer;
  };
  return spec;
}

std::map<std::string, at::Tensor> parameters_of_share(const LayerSpec& spec, const Share& share) {
  std::map<std::string, at::Tensor> parameters;
  const auto layer = build(spec, 3, 5, {.share = share});
  for (const auto& each : layer->named_parameters()) parameters[each.key()] = each.value().detach();
  return parameters;
}

// A normal distribution, whose bits depend on how many are drawn at once.
TEST(Making, SharesAreBitForBitPartsOfTheWhole) {
  const LayerSpec spec = filled(normal_parameters());
  const auto whole = parameters_of_share(spec, {});
  for (const std::int64_t of : {2, 3}) {
    std::vector<at::Tensor> rows, columns;
    for (std::int64_t i = 0; i < of; ++i) {
      const auto share = parameters_of_share(spec, {.index = i, .of = of});
      rows.push_back(share.at("rows.weight"));
      columns.push_back(share.at("columns"));
      EXPECT_TRUE(same_bits(share.at("bias"), whole.at("bias")));
    }
    EXPECT_EQ(rows.front().size(0), of == 2 ? 4 : 3);  // The first ones have more.
    EXPECT_EQ(columns.back().size(1), of == 2 ? 4 : 3);
    EXPECT_TRUE(same_bits(at::cat(rows, 0), whole.at("rows.weight")));
    EXPECT_TRUE(same_bits(at::cat(columns, 1), whole.at("columns")));
  }
}

TEST(Making, AFunctionOfPartsFillsThemItself) {
  std::map<std::string, Box> boxes;
  const auto note = [&boxes](const std::string& name, at::Tensor& part, const Cut& cut) {
    boxes[name] = partition::box_of(cut, partition::shape_of_whole(part.sizes().vec(), cut));
    part.fill_(1);
  };
  parameters_of_share(filled(note), {.index = 1, .of = 2});
  EXPECT_EQ(boxes,
            (std::map<std::string, Box>{
                {"rows.weight", {{4, 3}, {0, 6}}}, {"columns", {{0, 5}, {5, 4}}}, {"bias", {}}}));
}

TEST(Making, ASizeCountsWhole) {
  const LayerSpec spec = filled(normal_parameters());
  for (const std::int64_t i : {0, 1}) {
    EXPECT_EQ(trainable_elements(*build(spec, 1, 0, {.share = {i, 2}})), 7 * 6 + 5 * 9 + 4);
  }
}

// Of a module that is no Layer, too, whose parameters its layer has taken over.
TEST(Making, LayersOfModulesKnowTheirCuts) {
  const LayerSpec spec =
      layer("rows", [](const Making& making) { return std::make_shared<Rows>(making); });
  EXPECT_EQ(spec.meta.type, "Rows");
  const BuiltLayer built = build_layer({spec}, 1, 0, {.share = {1, 2}});
  const std::vector<ModelParameter> parameters = parameters_of(built, "rows");
  ASSERT_EQ(parameters.size(), 1u);
  EXPECT_EQ(parameters[0].name, "rows.weight");
  EXPECT_EQ(parameters[0].tensor.size(0), 3);
  EXPECT_EQ(parameters[0].cut, (Cut{.dimension = 0, .part = 1, .of = 2, .size = 7}));
}

TEST(Making, AFunctionOfNothingMakesAllWeights) {
  const LayerSpec spec = layer("fc", [] { return torch::nn::Linear(6, 7); });
  const auto share = parameters_of_share(spec, {.index = 1, .of = 2});
  EXPECT_TRUE(same_bits(share.at("weight"), parameters_of_share(spec, {}).at("weight")));
}

TEST(Making, PartsOfFusedOnesAreTakenAndSet) {
  const at::Tensor whole = at::arange(2 * 18, at::kFloat).view({2, 18});
  at::Tensor again = at::zeros_like(whole);
  for (const std::int64_t i : {0, 1}) {
    const Cut cut = partition::cut_along({.dimension = 1, .unit = 2, .fused = 3}, {2, 18},
                                         {.index = i, .of = 2});
    const at::Tensor part = part_of(whole, cut);
    const std::int64_t first = i == 0 ? 0 : 4, count = i == 0 ? 4 : 2;
    const auto of_each = [&](std::int64_t which) {
      return whole.narrow(1, 6 * which + first, count);
    };
    EXPECT_TRUE(same_bits(part, at::cat({of_each(0), of_each(1), of_each(2)}, 1)));
    set_part(again, cut, part.contiguous());
  }
  EXPECT_TRUE(same_bits(again, whole));
}

TEST(Making, AProjectionThatFusesOtherSizesIsNotShared) {
  DecoderOptions options{.form = DecoderForm::Gpt2, .heads = 4, .kv_heads = 2};
  const auto refusal = [&](std::int64_t of) {
    const LayerSpec block = decoder_layers(options)[1];
    return message_of([&] { build(block, 1, 1, {.share = {.index = 0, .of = of}}); });
  };
  EXPECT_EQ(refusal(1), "no error");
  EXPECT_EQ(
      refusal(2),
      "the function that makes layer \"transformer.h.0\": mesh.tensor = 2: ranks share c_attn "
      "where it has as many heads of keys and values as of queries; it has 2 and 4\n"
      "  note: take mesh.tensor 1, or a model that has a projection for each of them");
  options.kv_heads = 4;
  EXPECT_EQ(refusal(2), "no error");
}

TEST(Making, TiedParametersAreCutAlike) {
  const auto by = [](const std::string& name, std::size_t dimension) {
    return TiedLayerSpec("w", layer(name, [dimension](const Making& making) {
                           struct Square : Layer {
                             Square(const Making& with, std::size_t cut) {
                               register_part("weight", with, {6, 6}, {.dimension = cut});
                             }
                           };
                           return std::make_shared<Square>(making, dimension);
                         }));
  };
  const auto refusal = [&](std::size_t other, const Making& making) {
    return message_of([&] { build_layer({by("a", 0), by("b", other)}, 1, 1, making); });
  };
  EXPECT_EQ(refusal(1, {}), "no error");
  EXPECT_EQ(refusal(0, {.share = {0, 2}}), "no error");
  EXPECT_EQ(refusal(1, {.share = {0, 2}}),
            "the parameters a.weight and b.weight are tied to \"w\", and cannot be the same: "
            "Float[3, 6], part 0 of 2 along dimension 0 and Float[6, 3], part 0 of 2 along "
            "dimension 1");
}

}  // namespace
}  // namespace penstock::nn
