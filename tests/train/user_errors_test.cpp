// What a user's code throws, wherever and whatever it is: one line says where it was, on every
// rank, and ranks that drop the batch train on as if it had not been.
#include <ATen/ops/full_like.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/nn/dropout.h"
#include "penstock/train/trainer.h"
#include "tests/support/same_bits.h"

namespace penstock::train {
// Its whole name is part of a message.
struct Refused {
  int label = 12;
};

namespace {

using testing_support::same_bits;

constexpr std::int64_t kWidth = 6;

enum class Where : std::uint8_t {
  Nowhere,
  Forward,
  Function,
  Hook,
  WeightHook,
  Loss,
  LossFunction
};

// What fails in the batch that this thread, a rank, has now.
thread_local Where fails_in = Where::Nowhere;
thread_local std::function<void()> fault;

void fail_in(Where where) {
  if (fails_in == where) fault();
}

template <Where kWhere>
struct Passes : torch::autograd::Function<Passes<kWhere>> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    fail_in(kWhere);
    return gradients;
  }
};

struct Fragile : torch::nn::Module {
  Fragile() {
    fc = register_module("fc", torch::nn::Linear(kWidth, kWidth));
    fc->weight.register_hook([](const at::Tensor&) { fail_in(Where::WeightHook); });
  }
  at::Tensor forward(const at::Tensor& x) {
    fail_in(Where::Forward);
    at::Tensor y = Passes<Where::Function>::apply(fc(x));
    if (y.requires_grad()) y.register_hook([](const at::Tensor&) { fail_in(Where::Hook); });
    return y * 2;
  }
  torch::nn::Linear fc{nullptr};
};

std::vector<nn::LayerSpec> model() {
  return {nn::layer<torch::nn::Linear>("first", kWidth, kWidth),
          nn::layer("fragile", [] { return std::make_shared<Fragile>(); }),
          nn::layer<torch::nn::BatchNorm1d>("norm", kWidth), nn::layer<nn::Dropout>("dropout", 0.5),
          nn::layer<torch::nn::Linear>("last", kWidth, kWidth)};
}

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  fail_in(Where::Loss);
  return at::mse_loss(Passes<Where::LossFunction>::apply(output), target);
}

struct Batch {
  at::Tensor input = at::rand({8, kWidth}), target = at::rand({8, kWidth});
};

TrainerOptions options_of(const mesh::Shape& mesh) {
  return {.mesh = mesh,
          .microbatches = 2,
          .partition = partition::ByBounds{mesh.pipe == 2 ? std::vector<std::int64_t>{0, 3, 5}
                                                          : std::vector<std::int64_t>{0, 5}},
          .optimizer = {.lr = 0.01}};
}

// What every rank heard of the second step, in which that rank's code throws.
std::vector<std::string> heard(const TrainerOptions& options, std::int32_t failing, Where where,
                               const std::function<void()>& thrown) {
  const std::int32_t ranks = options.mesh.pipe * options.mesh.data;
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  const Batch batch;
  comm::run_ranks(ranks, [&](comm::Communicator& communicator) {
    Trainer trainer(options, model(), loss_of, communicator);
    trainer.step(batch.input, batch.target);
    fault = thrown;
    if (communicator.rank().value == failing) fails_in = where;
    try {
      trainer.step(batch.input, batch.target);
    } catch (const Error& error) {
      texts[communicator.rank().index()] = error.message();
    }
    fails_in = Where::Nowhere;
    EXPECT_EQ(trainer.step(batch.input, batch.target).step, 2);
  });
  return texts;
}

void expect_said(const std::vector<std::string>& texts, const std::vector<std::string>& words) {
  for (const std::string& text : texts) {
    for (const std::string& word : words) {
      EXPECT_NE(text.find(word), std::string::npos) << "no " << word << ": " << text;
    }
    EXPECT_EQ(text.find("frame #"), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
}

TEST(UserErrors, SayRankStepMicrobatchAndPlaceWhereverTheyAreThrown) {
  const std::map<Where, std::string> places = {
      {Where::Forward, ": layer \"fragile\": "},
      {Where::Function, ": backward of layer \"fragile\": "},
      {Where::Hook, ": backward of layer \"fragile\": "},
      {Where::WeightHook, ": backward of layer \"fragile\", parameter \"fc.weight\": "},
      {Where::Loss, ": the loss: "},
      {Where::LossFunction, ": backward of the loss: "}};
  std::vector<TrainerOptions> layouts = {options_of({.pipe = 2}), options_of({.data = 2}),
                                         options_of({.pipe = 2}), options_of({.pipe = 2})};
  layouts[2].schedule = "zb_h1";
  layouts[3].checkpointing.interval = 1;
  for (const TrainerOptions& options : layouts) {
    for (const auto& [where, place] : places) {
      const bool is_last = where == Where::Loss || where == Where::LossFunction;
      const std::int32_t rank = options.mesh.data == 2 || is_last ? 1 : 0;
      expect_said(heard(options, rank, where, [] { throw std::runtime_error("label 12"); }),
                  {str("rank ", rank), "step 2, microbatch 0, ", place, ": label 12"});
    }
  }
}

TEST(UserErrors, AreSaidWhateverTheyAre) {
  const std::vector<std::pair<std::function<void()>, std::string>> thrown = {
      {[] { throw std::invalid_argument("sensor 7"); }, "sensor 7"},
      {[] { TORCH_CHECK(false, "99 columns"); }, "99 columns"},
      {[] { throw 42; }, "an int, 42"},
      {[] { throw "text"; }, "text"},
      {[] { throw std::string("a string"); }, "a string"},
      {[] { throw Refused(); }, "an exception of type penstock::train::Refused"},
      {[] { throw std::runtime_error(""); }, "an exception of type std::runtime_error"}};
  for (const Where where : {Where::Forward, Where::Function, Where::Hook}) {
    for (const auto& [function, words] : thrown) {
      expect_said(heard(options_of({.pipe = 2}), 0, where, function),
                  {"rank 0", "layer \"fragile\": " + words});
    }
  }
}

TEST(UserErrors, OfTheFunctionThatMakesALayerReachAllRanks) {
  for (const auto& method : {partition::Method(partition::ByParameters{}),
                             partition::Method(partition::ByBounds{{0, 1, 2}})}) {
    std::mutex mutex;
    std::vector<std::string> texts;
    comm::run_ranks(2, [&](comm::Communicator& communicator) {
      const bool is_missing = communicator.rank().value == 1;
      const std::vector<nn::LayerSpec> layers = {nn::layer<torch::nn::Linear>("first", 4, 4),
                                                 nn::layer("read", [is_missing] {
                                                   if (is_missing) throw 7;
                                                   return torch::nn::Linear(4, 4);
                                                 })};
      for (int tries = 0; tries < 2; ++tries) {
        try {
          const Trainer trainer({.mesh = {.pipe = 2}, .partition = method}, layers, loss_of,
                                communicator);
          ADD_FAILURE() << "a Trainer was made";
        } catch (const Error& error) {
          const std::lock_guard lock(mutex);
          texts.push_back(error.message());
        }
      }
    });
    EXPECT_EQ(texts.size(), 4u);
    expect_said(texts, {"rank 1", "the function that makes layer \"read\": an int, 7"});
  }
}

// Parameters and buffers of all ranks, and the losses of the steps that were taken.
struct Trained {
  std::map<std::string, at::Tensor> state;
  std::vector<double> losses;
};

enum class Bad : std::uint8_t { NoBatch, Throws, IsNan, HasNoSamples };

Trained train(const TrainerOptions& options, Bad bad, Where where, comm::Transport transport) {
  at::manual_seed(3);
  const std::vector<Batch> batches(5);
  Trained trained;
  std::mutex mutex;
  const std::int32_t ranks = options.mesh.pipe * options.mesh.data;
  const auto body = [&](comm::Communicator& communicator) {
    Trainer trainer(options, model(), loss_of, communicator);
    const bool fails = communicator.rank().value == ranks - 1;
    fault = [] { throw std::runtime_error("label 12"); };
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const Batch& batch = batches[i];
      const bool is_bad = i == 2;
      if (is_bad && bad == Bad::NoBatch) continue;
      at::Tensor input = batch.input;
      if (is_bad && bad == Bad::IsNan) input = at::full_like(input, std::nan(""));
      if (is_bad && bad == Bad::HasNoSamples && communicator.rank().value == 0) input = input[0][0];
      if (is_bad && bad == Bad::Throws && fails) fails_in = where;
      try {
        const StepReport report = trainer.step(input, batch.target);
        EXPECT_FALSE(is_bad) << "a bad batch was trained";
        if (communicator.rank().value == 0) trained.losses.push_back(report.loss);
      } catch (const Error& error) {
        EXPECT_TRUE(is_bad) << error.what();
      }
      fails_in = Where::Nowhere;
    }
    EXPECT_EQ(trainer.steps_taken(), 4);
    EXPECT_TRUE(std::isfinite(trainer.evaluate(batches[0].input, batches[0].target)));
    const auto whole = trainer.rank_model().whole_parameters();
    const std::lock_guard lock(mutex);
    for (const auto& stage : trainer.rank_model().stages()) {
      for (const auto& [name, tensor] : stage.layers().state()) {
        trained.state[name] = tensor.detach().clone();
      }
    }
  };
  comm::run_ranks(ranks, body, std::chrono::seconds(20), transport);
  return trained;
}

void expect_forgotten(const TrainerOptions& options, Bad bad, Where where,
                      comm::Transport transport = comm::Transport::Auto) {
  const Trained expected = train(options, Bad::NoBatch, where, transport);
  const Trained trained = train(options, bad, where, transport);
  EXPECT_EQ(trained.losses, expected.losses);
  ASSERT_EQ(trained.state.size(), expected.state.size());
  for (const auto& [name, tensor] : expected.state) {
    EXPECT_TRUE(same_bits(trained.state.at(name), tensor)) << name;
  }
}

struct Case {
  const char* name;
  TrainerOptions options;
  comm::Transport transport = comm::Transport::Auto;
};
std::ostream& operator<<(std::ostream& out, const Case& each) { return out << each.name; }

std::vector<Case> cases() {
  std::vector<Case> all = {{"OneRank", options_of({})},
                           {"Pipe", options_of({.pipe = 2})},
                           {"PipeOverTcp", options_of({.pipe = 2}), comm::Transport::Tcp},
                           {"PipeOverGloo", options_of({.pipe = 2}), comm::Transport::Gloo},
                           {"Recomputed", options_of({.pipe = 2})},
                           {"ZeroBubble", options_of({.pipe = 2})},
                           {"Replicas", options_of({.data = 2})},
                           {"Zero2", options_of({.pipe = 2, .data = 2})},
                           {"Zero3", options_of({.data = 2})},
                           {"Zero3Pipes", options_of({.pipe = 2, .data = 2})},
                           {"Invariant", options_of({.pipe = 2, .data = 2})},
                           {"Fp16", options_of({.data = 2})}};
  const auto named = [&](std::string_view name) -> TrainerOptions& {
    return std::ranges::find(all, name, &Case::name)->options;
  };
  named("Recomputed").checkpointing.interval = 1;
  named("ZeroBubble").schedule = "zb_h1";
  named("Zero2").zero.stage = ZeroStage::Gradients;
  named("Zero3").zero.stage = named("Zero3Pipes").zero.stage = ZeroStage::Parameters;
  named("Invariant").sums = GradientSums::Invariant;
  named("Fp16").precision = {.type = at::kHalf, .gradient_scale = {.enabled = true}};
  return all;
}

class Forgets : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(BadBatches, Forgets, testing::ValuesIn(cases()),
                         [](const auto& one) { return std::string(one.param.name); });

TEST_P(Forgets, WhatWasThrown) {
  // The last rank has the loss.
  for (const Where where : {Where::Loss, Where::LossFunction}) {
    expect_forgotten(GetParam().options, Bad::Throws, where, GetParam().transport);
  }
}

TEST_P(Forgets, WhatIsNotFinite) {
  if (GetParam().options.precision.is_short()) GTEST_SKIP() << "such a step is skipped";
  expect_forgotten(GetParam().options, Bad::IsNan, Where::Nowhere, GetParam().transport);
}

TEST_P(Forgets, WhatCannotBeCut) {
  expect_forgotten(GetParam().options, Bad::HasNoSamples, Where::Nowhere, GetParam().transport);
}

}  // namespace
}  // namespace penstock::train
