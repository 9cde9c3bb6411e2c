#include "penstock/emulate/emulate.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <string>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/runtime/emulate/from_config.h"

namespace penstock::emulate {
namespace {

constexpr std::int64_t kTokens = 256, kLength = 32, kWidth = 16, kSamples = 4;

struct Embedding : torch::nn::Module {
  at::Tensor forward(const at::Tensor& tokens) {
    return words(tokens) + places(at::arange(tokens.size(1), tokens.options()));
  }
  torch::nn::Embedding words = register_module("words", torch::nn::Embedding(kTokens, kWidth));
  torch::nn::Embedding places = register_module("places", torch::nn::Embedding(kLength, kWidth));
};

struct Block : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x + second(at::relu(first(x))); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(kWidth, kWidth));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(kWidth, kWidth));
};

struct Head : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return words(norm(x)); }
  torch::nn::LayerNorm norm =
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  torch::nn::Linear words = register_module(
      "words", torch::nn::Linear(torch::nn::LinearOptions(kWidth, kTokens).bias(false)));
};

at::Tensor next_word_loss(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
}

const devices::DeviceModel& h100() {
  static const devices::DeviceModel device = devices::device_model("h100-sxm");
  return device;
}

// The byte MLP of configurations, as a user would write it.
Step own_step(const mesh::Shape& mesh, nn::LayerSpec between) {
  const at::Tensor text = at::zeros({kSamples, kLength}, at::kLong);
  return {.options = {.mesh = mesh, .microbatches = 2},
          .layers = {nn::layer<Embedding>("embedding"), std::move(between),
                     nn::layer<Block>("block"), nn::layer<Head>("head")},
          .loss = next_word_loss,
          .inputs = text,
          .targets = text};
}
Step own_step(const mesh::Shape& mesh) { return own_step(mesh, nn::layer<Block>("first block")); }

Step configured_step(const mesh::Shape& mesh) {
  config::Config config;
  config.batch = {.train_batch_size = kSamples * mesh[mesh::Axis::Data],
                  .train_micro_batch_size_per_gpu = kSamples / 2};
  config.mesh = {.pipe = mesh[mesh::Axis::Pipe], .data = mesh[mesh::Axis::Data]};
  config.model.type = config::ModelType::Mlp;
  config.model.layers = 2;
  config.model.hidden = kWidth;
  config.model.sequence_length = kLength;
  config.model.dropout = 0;
  return step_of(config, mesh.size());
}

void expect_same(const Report& one, const Report& other) {
  ASSERT_EQ(one.ranks.size(), other.ranks.size());
  EXPECT_EQ(one.samples, other.samples);
  EXPECT_EQ(one.step_s, other.step_s);
  EXPECT_EQ(one.share_of_peak, other.share_of_peak);
  for (std::size_t i = 0; i < one.ranks.size(); ++i) {
    const RankReport &a = one.ranks[i], &b = other.ranks[i];
    EXPECT_EQ(a.step.kernels, b.step.kernels) << i;
    EXPECT_EQ(a.step.product_flops, b.step.product_flops) << i;
    EXPECT_EQ(a.step.copies_out, b.step.copies_out) << i;
    EXPECT_EQ(a.step.bytes_out, b.step.bytes_out) << i;
    EXPECT_EQ(a.step.copies_in, b.step.copies_in) << i;
    EXPECT_EQ(a.step.bytes_in, b.step.bytes_in) << i;
    EXPECT_EQ(a.step.scalars, b.step.scalars) << i;
    EXPECT_EQ(a.step.messages, b.step.messages) << i;
    EXPECT_EQ(a.step.message_bytes, b.step.message_bytes) << i;
    EXPECT_EQ(a.memory.peak, b.memory.peak) << i;
  }
}

// The error's whole text.
std::string refusal(const Step& step, const devices::DeviceModel& device = h100()) {
  try {
    emulate(step, device);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Emulate, OwnLayersTakeWhatThoseOfAConfigurationTake) {
  for (const mesh::Shape& mesh :
       {mesh::Shape{}, mesh::Shape{.pipe = 2}, mesh::Shape{.pipe = 2, .data = 2}}) {
    const Report own = emulate(own_step(mesh), h100());
    expect_same(own, emulate(configured_step(mesh), h100()));
    EXPECT_GT(own.ranks.front().step.all_kernels(), 0);
    EXPECT_EQ(own.samples, kSamples * mesh[mesh::Axis::Data]);
  }
}

TEST(Emulate, CallsOfAProcessKnowNothingOfEachOther) {
  const Report first = emulate(own_step({.pipe = 2}), h100());
  emulate(own_step({.pipe = 2, .data = 4}), devices::device_model("a100-40"));
  expect_same(emulate(own_step({.pipe = 2}), h100()), first);
}

TEST(Emulate, ATensorMayOutliveItsDevice) {
  at::Tensor kept;
  const auto keeping = [&](const at::Tensor& x) {
    kept = x.detach();
    return x;
  };
  emulate(own_step({}, nn::layer("keeping", keeping)), h100());
  const auto passing = [&](const at::Tensor& x) {
    kept.reset();  // Memory of a device that is gone.
    return x;
  };
  const Report second = emulate(own_step({}, nn::layer("passing", passing)), h100());
  const Report third = emulate(own_step({}, nn::layer("passing", passing)), h100());
  EXPECT_EQ(second.ranks[0].memory.live, third.ranks[0].memory.live);
}

TEST(Emulate, AValueThatALayerReadsIsAnErrorThatNamesTheLayer) {
  const auto scaling = [](const at::Tensor& x) { return x / x.abs().amax().item<double>(); };
  const auto moving = [](const at::Tensor& x) { return x + x.detach().cpu().sum().to(x.device()); };
  const std::string scaled = refusal(own_step({}, nn::layer("scaling", scaling)));
  EXPECT_NE(scaled.find("scaling"), std::string::npos) << scaled;
  EXPECT_NE(scaled.find("reads values of a tensor in the host"), std::string::npos) << scaled;
  EXPECT_NE(scaled.find("value_read"), std::string::npos) << scaled;
  const std::string moved = refusal(own_step({}, nn::layer("moving", moving)));
  EXPECT_NE(moved.find("aten::copy_ reads values"), std::string::npos) << moved;
}

TEST(Emulate, AValueThatIsGivenIsReadAndCounted) {
  double read = 0, copied = 0;
  bool is_true = false;
  Step step = own_step({}, nn::layer("reading", [&](const at::Tensor& x) {
                         read = x.amax().item<double>();
                         is_true = (x > 0).any().item<bool>();
                         copied = x.detach().cpu().flatten()[3].item<double>();
                         return x;
                       }));
  step.value_read = 2.5;
  const Report report = emulate(step, h100());
  EXPECT_EQ(read, 2.5);
  EXPECT_EQ(copied, 2.5);
  EXPECT_TRUE(is_true);
  const Ledger &with = report.ranks[0].step, without = emulate(own_step({}), h100()).ranks[0].step;
  EXPECT_EQ(with.scalars, 2 * step.options.microbatches);
  EXPECT_EQ(with.copies_out - without.copies_out, step.options.microbatches);
}

TEST(Emulate, AShapeThatDependsOnValuesIsAnError) {
  const auto choosing = [](const at::Tensor& x) { return x + x.nonzero().size(0); };
  const std::string told = refusal(own_step({}, nn::layer("choosing", choosing)));
  EXPECT_NE(told.find("aten::nonzero: the shape of its result depends on values"),
            std::string::npos)
      << told;
  EXPECT_NE(told.find("choosing"), std::string::npos) << told;
}

// It had been taken for an inference tensor.
TEST(Emulate, AViewThatIsNoStridedOneIsDifferentiable) {
  const auto pairs = [](const at::Tensor& x) {
    return at::view_as_real(at::view_as_complex(x.unflatten(-1, {-1, 2}))).flatten(-2);
  };
  EXPECT_EQ(refusal(own_step({}, nn::layer("pairs", pairs))), "");
}

TEST(Emulate, AConvolutionTakesItsProductsOnceForwardAndTwiceBackward) {
  static constexpr std::int64_t kGroups = 2, kWindow = 3;
  const auto turned = [](const at::Tensor& x) { return x.transpose(1, 2); };
  const auto step = [&](nn::LayerSpec layer) {
    Step own = own_step({}, nn::layer("there", turned));
    own.layers.insert(own.layers.begin() + 2, {std::move(layer), nn::layer("back", turned)});
    return emulate(own, h100()).ranks[0];
  };
  const RankReport none = step(nn::layer("none", [](const at::Tensor& x) { return x; }));
  const RankReport with = step(nn::layer("convolution", [] {
    return torch::nn::Conv1d(
        torch::nn::Conv1dOptions(kWidth, kWidth, kWindow).padding(1).groups(kGroups));
  }));
  const RankReport transposed = step(nn::layer("transposed", [] {
    return torch::nn::ConvTranspose1d(
        torch::nn::ConvTranspose1dOptions(kWidth, kWidth, kWindow).padding(1).groups(kGroups));
  }));
  constexpr double kOnce = 2.0 * kSamples * kLength * kWidth * kWindow * kWidth / kGroups;
  EXPECT_EQ(with.step.product_flops - none.step.product_flops, 3 * kOnce);
  EXPECT_EQ(transposed.step.product_flops - none.step.product_flops, 3 * kOnce);
}

TEST(Emulate, WhatCannotBeAStepIsRefused) {
  EXPECT_NE(refusal(own_step({.data = 128})).find("128 ranks"), std::string::npos);
  Step step = own_step({});
  step.inputs = {};
  EXPECT_NE(refusal(step).find("no inputs"), std::string::npos);
  devices::DeviceModel small = h100();
  small.memory_bytes = 1e4;
  EXPECT_NE(refusal(own_step({}), small).find("has no more memory"), std::string::npos);
  EXPECT_EQ(refusal(own_step({})), "");  // And the next one begins anew.
}

}  // namespace
}  // namespace penstock::emulate
