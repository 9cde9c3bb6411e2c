// What a model says of its layers: ties, skips, random numbers.
#include "penstock/runtime/nn/model.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include "penstock/core/error.h"
#include "penstock/nn/gpt.h"
#include "penstock/runtime/nn/draw.h"
#include "penstock/runtime/nn/dropout.h"
#include "penstock/runtime/nn/loss_layer.h"

namespace penstock::nn {
namespace {

LayerSpec linear(const std::string& name, std::int64_t in = 4, std::int64_t out = 4) {
  return layer<torch::nn::Linear>(name, in, out);
}

// A loss around a module of the program's.
struct MeasuresBy : torch::nn::Module {
  explicit MeasuresBy(torch::nn::Linear by) : fc(register_module("fc", std::move(by))) {}
  at::Tensor forward(const at::Tensor& output, const at::Tensor& target) {
    return (fc(output) - target).square().mean();
  }
  torch::nn::Linear fc;
};

std::vector<std::string> problems(const std::vector<LayerSpec>& model) {
  try {
    check_model(model);
  } catch (const ConfigError& error) {
    std::vector<std::string> all = {error.message()};
    all.insert(all.end(), error.notes().begin(), error.notes().end());
    return all;
  }
  return {};
}

std::string refusal(const std::vector<LayerSpec>& model, std::int64_t index) {
  try {
    build_layer(model, 1, index);
  } catch (const ConfigError& error) {
    return error.message();
  }
  return "";
}

TEST(Model, AllThatIsWrongIsSaid) {
  EXPECT_EQ(
      problems({linear("a").gives("x"), linear("b"), linear("a").takes("x")}),
      (std::vector<std::string>{"two layers of the model are called \"a\"; names must differ, "
                                "they name the weights"}));
  EXPECT_EQ(problems({linear("a").takes("wide"), linear("b").gives("wide").gives("wyde"),
                      linear("c").gives("wide"), linear("d").takes("wide")}),
            (std::vector<std::string>{
                "layer \"a\" takes \"wide\", which no layer before it gives; did you mean "
                "\"wide\"?",
                "layers \"b\" and \"c\" both give \"wide\"",
                "layer \"b\" gives \"wyde\", which no later layer takes"}));
  EXPECT_EQ(
      problems({TiedLayerSpec("words", linear("a")), TiedLayerSpec("word", linear("b")),
                TiedLayerSpec("x", TiedLayerSpec("x", linear("c")))}),
      (std::vector<std::string>{"layer \"c\" is tied to \"x\" twice",
                                "only layer \"b\" is tied to \"word\"; did you mean \"words\"?",
                                "only layer \"a\" is tied to \"words\"; did you mean \"word\"?"}));
  EXPECT_TRUE(problems({linear("a").gives("x"), linear("b").takes("x")}).empty());
}

// Neither a plain loop's one module nor what each layer would be alone.
TEST(Model, OneModuleForTwoLayersIsRefusedByNameUnlessTheyAreTied) {
  const torch::nn::Linear fc(4, 4);
  const auto refused = [](const std::string& first, const std::string& second,
                          const std::string& what) {
    return std::vector<std::string>{"layers \"" + first + "\" and \"" + second +
                                    "\" are given one module, and each would have a copy of " +
                                    what +
                                    ": give one of them a clone(), or tie them by "
                                    "nn::TiedLayerSpec"};
  };
  EXPECT_EQ(problems({layer("a", fc), linear("b"), layer("c", fc.ptr())}),
            refused("a", "c", "the parameter \"weight\""));
  EXPECT_EQ(problems({layer("a", fc), layer<torch::nn::Sequential>("b", fc)}),
            refused("a", "b", "the parameter \"0.weight\""));
  EXPECT_EQ(problems({TiedLayerSpec("k", layer("a", fc), {"weight"}),
                      TiedLayerSpec("k", layer("b", fc), {"weight"})}),
            refused("a", "b", "the parameter \"bias\""));
  const torch::nn::BatchNorm1d norm(torch::nn::BatchNorm1dOptions(4).affine(false));
  EXPECT_EQ(problems({layer("a", norm), layer("b", norm)}),
            refused("a", "b", "the buffer \"running_mean\""));
  EXPECT_EQ(problems(with_loss({layer("a", fc)}, std::make_shared<MeasuresBy>(fc))),
            refused("a", "loss", "the parameter \"fc.weight\""));
}

TEST(Model, OneModuleMayBeGivenTwiceWhereItIsTheSame) {
  using Strings = std::vector<std::string>;
  const torch::nn::Linear fc(4, 4);
  EXPECT_EQ(problems({TiedLayerSpec("k", layer("a", fc)), TiedLayerSpec("k", layer("b", fc))}),
            Strings());
  const torch::nn::ReLU relu;
  EXPECT_EQ(problems({layer("a", relu), layer("b", relu)}), Strings());
  EXPECT_EQ(problems({layer("a", fc), layer("b", fc->clone())}), Strings());
  fc->weight.requires_grad_(false);
  fc->bias.requires_grad_(false);
  EXPECT_EQ(problems({layer("a", fc), layer("b", fc)}), Strings());
}

TEST(Model, TiedParametersAreAsTheFirstOfTheirLayersMakesThem) {
  const std::vector<LayerSpec> model = {TiedLayerSpec("w", linear("a"), {"weight"}), linear("b"),
                                        TiedLayerSpec("w", linear("c"), {"weight"})};
  const BuiltLayer first = build_layer(model, 5, 0), last = build_layer(model, 5, 2);
  ASSERT_EQ(last.tied.size(), 1u);
  EXPECT_TRUE(first.tied[0].is_first());
  EXPECT_FALSE(last.tied[0].is_first());
  EXPECT_EQ(last.tied[0].name, "a.weight");
  EXPECT_EQ(last.tied[0].layers, (std::vector<std::int64_t>{0, 2}));
  const auto parameters = last.layer->named_parameters();
  EXPECT_TRUE(at::equal(parameters["weight"], first.layer->named_parameters()["weight"]));
  EXPECT_FALSE(at::equal(parameters["bias"], first.layer->named_parameters()["bias"]));
  EXPECT_TRUE(build_layer(model, 5, 1).tied.empty());
}

TEST(Model, TiesThatDoNotFitAreRefused) {
  const std::vector<LayerSpec> misspelt = {TiedLayerSpec("w", linear("a"), {"weight"}),
                                           TiedLayerSpec("w", linear("b"), {"wieght"})};
  EXPECT_EQ(refusal(misspelt, 1),
            "layer \"b\" has no parameter \"wieght\" to tie to \"w\"; did you mean \"weight\"?");
  const std::vector<LayerSpec> wider = {TiedLayerSpec("w", linear("a", 4, 6), {"weight"}),
                                        TiedLayerSpec("w", linear("b", 6, 4), {"weight"})};
  EXPECT_EQ(refusal(wider, 1),
            "the parameters a.weight and b.weight are tied to \"w\", and cannot be the same: "
            "Float[6, 4] and Float[4, 6]");
  const std::vector<LayerSpec> fewer = {TiedLayerSpec("w", linear("a")),
                                        TiedLayerSpec("w", linear("b"), {"weight"})};
  EXPECT_EQ(refusal(fewer, 1),
            "the layers of a.weight and b.weight are tied to \"w\" with 2 and 1 parameters");
  const std::vector<LayerSpec> both = {TiedLayerSpec("v", TiedLayerSpec("w", linear("a"))),
                                       TiedLayerSpec("v", TiedLayerSpec("w", linear("b")))};
  EXPECT_EQ(refusal(both, 0), "the parameter a.weight is tied to \"v\" and to another key");
}

TEST(Model, AGptTiesItsHeadToItsEmbedding) {
  const auto model = gpt_layers({.layers = 1, .hidden = 8, .heads = 2, .tie_embeddings = true});
  check_model(model);
  const BuiltLayer head = build_layer(model, 3, 2);
  ASSERT_EQ(head.tied.size(), 1u);
  EXPECT_EQ(head.tied[0].name, "transformer.wte.weight");
  EXPECT_TRUE(at::equal(head.layer->named_parameters()["lm_head.weight"],
                        build_layer(model, 3, 0).layer->named_parameters()["wte.weight"]));
}

at::Tensor mask(const DrawPlace& place) {
  const DrawScope scope(place);
  return Dropout(0.5)(at::ones({256}));
}

TEST(Dropout, DependsOnSeedStepMicrobatchAndLayerAndOnNothingElse) {
  const DrawPlace place{.seed = 1, .step = 2, .microbatch = 3, .layer = 4};
  const at::Tensor first = mask(place);
  EXPECT_TRUE(at::equal(mask(place), first));
  for (const DrawPlace& other :
       {DrawPlace{2, 2, 3, 4}, DrawPlace{1, 3, 3, 4}, DrawPlace{1, 2, 4, 4}, DrawPlace{1, 2, 3, 5},
        DrawPlace{2, 1, 3, 4}}) {
    EXPECT_FALSE(at::equal(mask(other), first));
  }
  const DrawScope scope(place);
  Dropout drop(0.5);
  const at::Tensor again = drop(at::ones({256})), second = drop(at::ones({256}));
  EXPECT_TRUE(at::equal(again, first));
  EXPECT_FALSE(at::equal(second, first)) << "a layer may draw twice";
}

TEST(Dropout, DropsItsShareAndKeepsTheMean) {
  const DrawScope scope({});
  const at::Tensor dropped = Dropout(0.25)(at::ones({200, 200}));
  const double zeros = dropped.eq(0).sum().item<double>() / 40000;
  EXPECT_NEAR(zeros, 0.25, 0.011);  // Five standard deviations.
  EXPECT_TRUE(dropped.eq(0).logical_or(dropped.eq(4.0f / 3.0f)).all().item<bool>());
  EXPECT_TRUE(at::equal(Dropout(0.0)(dropped), dropped));
  EXPECT_EQ(Dropout(1.0)(at::ones({8})).sum().item<double>(), 0.0);
  Dropout off(0.9);
  off->eval();
  EXPECT_TRUE(at::equal(off(dropped), dropped));
}

TEST(Dropout, ScalesDoublesAsDoubles) {
  const DrawScope scope({});
  const at::Tensor dropped = Dropout(0.1)(at::ones({64}, at::kDouble));
  EXPECT_EQ(dropped.max().item<double>(), 1 / 0.9);
}

TEST(Dropout, RefusesWhatIsNoProbabilityAndToDrawForNobody) {
  EXPECT_THROW(Dropout(1.5), ConfigError);
  EXPECT_THROW(Dropout(-0.1), ConfigError);
  EXPECT_THROW(Dropout(0.5)(at::ones({2})), Error);
}

}  // namespace
}  // namespace penstock::nn
