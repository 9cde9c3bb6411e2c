// Layers that draw as LibTorch's users draw: the same numbers in every layout, and again where
// activations are computed again.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/randint_like.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/rnn.h>

#include <mutex>
#include <thread>

#include "tests/support/same_bits.h"
#include "tests/train/model_kinds.h"

namespace penstock::train {
namespace {

using testing_support::same_bits;
using Function = std::function<at::Tensor(const at::Tensor&)>;

constexpr std::int64_t kMicrobatches = 4;
constexpr std::int64_t kStep = 1;

// A module of a user's, with a parameter before what draws.
class Draws : public torch::nn::Module {
 public:
  explicit Draws(Function function) : function_(std::move(function)) {
    weight_ = register_parameter("weight", at::rand({kWidth}));
  }
  at::Tensor forward(const at::Tensor& input) {
    return is_training() ? function_(input * weight_) : input * weight_;
  }

 private:
  Function function_;
  at::Tensor weight_;
};

nn::LayerSpec draws(const std::string& name, const Function& function) {
  return nn::layer(name, [function] { return std::make_shared<Draws>(function); });
}

// Two of them, so that a pipeline has one on each rank.
Kind kind_of(const std::string& name, const nn::LayerSpec& first, const nn::LayerSpec& second,
             const nn::Loss& loss = squares) {
  return {name, {linear("in"), first, linear("middle"), second, linear("out")}, loss, vectors};
}
Kind kind_of(const std::string& name, const Function& function) {
  return kind_of(name, draws("first", function), draws("second", function));
}

at::Tensor as_sequence(const at::Tensor& x) { return x.view({1, x.size(0), kWidth}); }

class Recurrent : public torch::nn::Module {
 public:
  Recurrent() {
    lstm_ = register_module(
        "lstm",
        torch::nn::LSTM(
            torch::nn::LSTMOptions(kWidth, kWidth).num_layers(2).dropout(0.5).batch_first(true)));
  }
  at::Tensor forward(const at::Tensor& x) { return std::get<0>(lstm_->forward(as_sequence(x)))[0]; }

 private:
  torch::nn::LSTM lstm_{nullptr};
};

class Attends : public torch::nn::Module {
 public:
  Attends() {
    attention_ = register_module("attention",
                                 torch::nn::MultiheadAttention(
                                     torch::nn::MultiheadAttentionOptions(kWidth, 2).dropout(0.5)));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor sequence = x.unsqueeze(1);
    return std::get<0>(attention_->forward(sequence, sequence, sequence)).squeeze(1);
  }

 private:
  torch::nn::MultiheadAttention attention_{nullptr};
};

template <class Module>
Kind kind_of_module(const std::string& name) {
  const auto spec = [](const char* of) {
    return nn::layer(of, [] { return std::make_shared<Module>(); });
  };
  return kind_of(name, spec("first"), spec("second"));
}

std::vector<Kind> kinds_that_draw() {
  return {kind_of("Dropout", [](const at::Tensor& x) { return at::dropout(x, 0.5, true); }),
          kind_of("Noise",
                  [](const at::Tensor& x) { return x + at::randn_like(x) * at::rand_like(x); }),
          kind_of("Bernoulli",
                  [](const at::Tensor& x) {
                    return x * at::bernoulli(at::ones({kWidth}) / 2) *
                           at::randint_like(x.detach(), 3);
                  }),
          kind_of("InPlace",
                  [](const at::Tensor& x) {
                    return x * at::ones({x.size(0), kWidth}).uniform_(0, 2).exponential_();
                  }),
          kind_of("Orders",
                  [](const at::Tensor& x) {
                    const at::Tensor columns = at::multinomial(at::ones({kWidth}), kWidth, true);
                    return x.index_select(1, at::randperm(kWidth)).index_select(1, columns);
                  }),
          kind_of("TorchsGenerator",
                  [](const at::Tensor& x) {
                    return x * at::bernoulli(at::ones({kWidth}) / 2,
                                             at::globalContext().defaultGenerator(at::kCPU));
                  }),
          // Nothing in the first microbatch: a first forward does not show that it draws.
          kind_of("SeldomDraws",
                  [](const at::Tensor& x) {
                    return nn::draw_place().microbatch == 0 ? x : at::dropout(x, 0.5, true);
                  }),
          kind_of("Attention",
                  [](const at::Tensor& x) {
                    const at::Tensor heads = as_sequence(x);
                    return at::scaled_dot_product_attention(heads, heads, heads, {}, 0.5)[0];
                  }),
          kind_of_module<Recurrent>("Lstm"), kind_of_module<Attends>("MultiheadAttention"),
          kind_of("DropoutModule", nn::layer<torch::nn::Dropout>("first", 0.5),
                  nn::layer<torch::nn::Dropout2d>("second", 0.5)),
          kind_of("Loss", linear("first"), linear("second"),
                  [](const at::Tensor& y, const at::Tensor& t) {
                    return at::mse_loss(at::dropout(y, 0.5, true), t);
                  })};
}

using Gradients = std::map<std::string, at::Tensor>;

// Of a plain loop, as one step's mean over its microbatches.
Gradients plain_gradients(const Kind& kind, const Batch2& batch) {
  PlainModel plain(kind, TrainerOptions{}.seed);
  const auto inputs = batch.inputs[0].chunk(kMicrobatches);
  const auto targets = batch.targets[0].chunk(kMicrobatches);
  for (std::int64_t m = 0; m < kMicrobatches; ++m) {
    plain.add(inputs[static_cast<std::size_t>(m)], targets[static_cast<std::size_t>(m)], kStep, m,
              1.0 / kMicrobatches);
  }
  return plain.gradients();
}

struct Layout2 {
  std::string name;
  mesh::Shape mesh;
  std::string schedule = "1f1b";
  std::int64_t recomputed = 0;
};

std::vector<Layout2> layouts() {
  return {{"one rank", {}},
          {"one rank, computed again", {}, "1f1b", 1},
          {"two stages", {.pipe = 2}, "zb_h1"},
          {"two stages, computed again", {.pipe = 2}, "1f1b", 2},
          {"two replicas", {.data = 2}},
          {"2 x 2, computed again", {.pipe = 2, .data = 2}, "gpipe", 1}};
}

Gradients gradients_in(const Layout2& layout, const Kind& kind, const Batch2& batch) {
  Gradients gradients;
  std::mutex mutex;
  comm::run_ranks(layout.mesh.pipe * layout.mesh.data, [&](comm::Communicator& communicator) {
    at::set_num_threads(1);
    const auto replicas = layout.mesh.data;
    Trainer trainer({.mesh = layout.mesh,
                     .schedule = layout.schedule,
                     .microbatches = static_cast<std::int32_t>(kMicrobatches / replicas),
                     .checkpointing = {.interval = layout.recomputed}},
                    kind.model, kind.loss, communicator);
    const auto replica =
        static_cast<std::size_t>(trainer.layout().mesh.coordinate(communicator.rank()).data);
    trainer.evaluate(batch.inputs[0].chunk(replicas)[replica],
                     batch.targets[0].chunk(replicas)[replica]);
    trainer.compute_gradients(batch.inputs[0].chunk(replicas)[replica],
                              batch.targets[0].chunk(replicas)[replica]);
    const std::lock_guard lock(mutex);
    for (const auto& [name, tensor] : trainer.parameters()) gradients[name] = tensor.grad().clone();
  });
  return gradients;
}

class KindsThatDraw : public ::testing::TestWithParam<Kind> {};

TEST_P(KindsThatDraw, HaveTheNumbersOfTheirPlaceInEveryLayout) {
  const Kind& kind = GetParam();
  const Batch2 batch = kind.batch(16, 0);
  const Gradients plain = plain_gradients(kind, batch);
  const at::Generator& generator = at::globalContext().defaultGenerator(at::kCPU);
  const at::Tensor before = generator.get_state();
  for (const Layout2& layout : layouts()) {
    const Gradients gradients = gradients_in(layout, kind, batch);
    for (const auto& [name, gradient] : plain) {
      ASSERT_TRUE(gradients.contains(name)) << layout.name << ": " << name;
      const double off = (gradients.at(name) - gradient).abs().max().item<double>();
      EXPECT_LE(off, 1e-6 * gradient.abs().max().item<double>()) << layout.name << ": " << name;
    }
  }
  EXPECT_TRUE(at::equal(generator.get_state(), before)) << "the script's generator was moved";
}

INSTANTIATE_TEST_SUITE_P(Kinds, KindsThatDraw, ::testing::ValuesIn(kinds_that_draw()),
                         [](const auto& kind) { return kind.param.name; });

// As one rank trains it, through `steps` steps.
std::vector<double> losses_of(const std::vector<nn::LayerSpec>& model, std::int64_t recomputed,
                              const Batch2& batch) {
  std::vector<double> losses;
  comm::run_ranks(1, [&](comm::Communicator& communicator) {
    Trainer trainer({.microbatches = 2, .checkpointing = {.interval = recomputed}}, model, squares,
                    communicator);
    for (int step = 0; step < 3; ++step) {
      losses.push_back(trainer.step(batch.inputs, batch.targets).loss);
      trainer.evaluate(batch.inputs, batch.targets);
    }
  });
  return losses;
}

TEST(Draws, OfAGeneratorOfALayersOwnAreMadeAgainAndNotByEvaluations) {
  const auto model = [](bool evaluated) {
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
    const Function own = [generator](const at::Tensor& x) {
      return x * at::bernoulli(at::ones({kWidth}) / 2, generator);
    };
    std::vector<nn::LayerSpec> layers = {linear("in"), draws("own", own), linear("out")};
    if (evaluated) {
      layers[1] =
          nn::layer("own", [own] { return torch::nn::Sequential(torch::nn::Functional(own)); });
    }
    return layers;
  };
  const Batch2 batch = vectors(8, 0);
  for (const bool evaluated : {false, true}) {  // Whether it draws there, too.
    EXPECT_EQ(losses_of(model(evaluated), 1, batch), losses_of(model(evaluated), 0, batch));
  }
}

// Its gradient is the gradient times random numbers.
struct NoisyGradient : torch::autograd::Function<NoisyGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*,
                                               torch::autograd::tensor_list gradients) {
    return {gradients[0] * at::rand_like(gradients[0])};
  }
};

TEST(Draws, InBackwardsAreTheSameAgainAndMoveNothing) {
  const Kind kind =
      kind_of("NoisyGradients", [](const at::Tensor& x) { return NoisyGradient::apply(x); });
  const Batch2 batch = kind.batch(16, 0);
  const at::Generator& generator = at::globalContext().defaultGenerator(at::kCPU);
  const at::Tensor before = generator.get_state();
  for (const Layout2& layout : layouts()) {
    const Gradients first = gradients_in(layout, kind, batch);
    for (const auto& [name, gradient] : gradients_in(layout, kind, batch)) {
      EXPECT_TRUE(same_bits(first.at(name), gradient)) << layout.name << ": " << name;
    }
  }
  EXPECT_TRUE(at::equal(generator.get_state(), before));
}

TEST(Draws, OfEvaluationsAreOthersEachTimeAndMoveNothing) {
  const std::vector<nn::LayerSpec> model = {nn::layer("always", [] {
    return torch::nn::Sequential(torch::nn::Functional(
        [](const at::Tensor& x) { return at::dropout(x, 0.5, /*train=*/true); }));
  })};
  const auto outputs_of = [&] {
    std::vector<at::Tensor> outputs;
    comm::run_ranks(1, [&](comm::Communicator& communicator) {
      Trainer trainer({}, model, squares, communicator);
      for (int i = 0; i < 2; ++i) outputs.push_back(trainer.infer(at::ones({64})));
    });
    return outputs;
  };
  const at::Generator& generator = at::globalContext().defaultGenerator(at::kCPU);
  const at::Tensor before = generator.get_state();
  const auto first = outputs_of(), again = outputs_of();
  EXPECT_FALSE(at::equal(first[0], first[1]));
  EXPECT_TRUE(at::equal(first[0], again[0]) && at::equal(first[1], again[1]));
  EXPECT_TRUE(at::equal(generator.get_state(), before));
}

TEST(Draws, OfAScopeAreItsThreadsAlone) {
  const at::Generator& generator = at::globalContext().defaultGenerator(at::kCPU);
  const at::Tensor before = generator.get_state();
  const nn::DrawScope scope({.seed = 3});
  const at::Tensor mine = at::rand({16});
  EXPECT_TRUE(at::equal(generator.get_state(), before));
  std::thread([&] { EXPECT_FALSE(at::equal(at::rand({16}), mine)); }).join();
  EXPECT_FALSE(at::equal(generator.get_state(), before)) << "another thread draws as it did";
}

}  // namespace
}  // namespace penstock::train
