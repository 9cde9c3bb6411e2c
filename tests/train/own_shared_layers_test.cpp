// Layers of a user's own that ranks share: pieces, exchanges and what a Trainer makes of them.
//
// Bounds: as in shared_layers_test.cpp.
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "penstock/nn/shared.h"
#include "penstock/train/trainer.h"
#include "tests/support/message_of.h"
#include "tests/support/same_bits.h"

namespace penstock::train {
namespace {

using exchange::cut;
using exchange::kInvariant;
using exchange::kPartial;
using exchange::kReplicated;
using mesh::Axis;
using testing_support::message_of;
using testing_support::same_bits;

constexpr std::int64_t kWide = 6;

// x + W2 relu(W1 x + b1) + b2, whose hidden features are shared: x is whole between such layers.
class Mlp : public nn::LayerInPieces {
 public:
  Mlp(const nn::Making& making, std::int64_t width, std::int64_t hidden)
      : LayerInPieces(2),
        in_(register_module("in",
                            std::make_shared<nn::ColumnLinear>(
                                making, nn::SharedLinearOptions{.in = width, .out = hidden}))),
        out_(register_module("out",
                             std::make_shared<nn::RowLinear>(
                                 making, nn::SharedLinearOptions{.in = hidden, .out = width}))) {}

  nn::Values forward_piece(std::size_t piece, const nn::Values& values) override {
    if (piece == 0) return {values[0], out_->summand(at::relu(in_->forward(values[1])))};
    return values[0] + out_->add_bias(values[1]);
  }

 private:
  std::shared_ptr<nn::ColumnLinear> in_;
  std::shared_ptr<nn::RowLinear> out_;
};

// Takes x as invariant, and copies it: what is computed of the copy has summands of its gradient.
class Twice : public nn::LayerInPieces {
 public:
  explicit Twice(const nn::Making&) : LayerInPieces(1) {}
  nn::Values forward_piece(std::size_t, const nn::Values& values) override {
    return {values[0], values[0]};
  }
};

nn::LayerSpec twice(const std::string& name) {
  return nn::layer_in_pieces<Twice>(
      name, {{.takes = {kInvariant},
              .gives = {kInvariant, kInvariant},
              .behind = {{.value = 1, .before = kInvariant, .after = kReplicated}}}});
}

exchange::Pieces pieces_of_mlp() {
  return {{.takes = {kInvariant, kReplicated},
           .gives = {kInvariant, kPartial},
           .behind = {{.value = 1, .before = kPartial, .after = kInvariant}},
           .parameters = {"in.weight", "in.bias", "out.weight"}},
          {.takes = {kInvariant, kInvariant}, .gives = {kInvariant}, .parameters = {"out.bias"}}};
}

std::vector<nn::LayerSpec> own_model(std::int64_t hidden = 9) {
  return {nn::layer<torch::nn::Linear>("first", kWide, kWide),
          twice("copy 0"),
          nn::layer_in_pieces<Mlp>("mlp 0", pieces_of_mlp(), kWide, hidden),
          twice("copy 1"),
          nn::layer_in_pieces<Mlp>("mlp 1", pieces_of_mlp(), kWide, hidden),
          nn::layer<torch::nn::Linear>("last", kWide, 3)};
}

TrainerOptions options_on(std::int32_t pipe, std::int32_t data, std::int32_t tensor) {
  return {.mesh = mesh::Shape{.pipe = pipe, .data = data}.with(Axis::Tensor, tensor),
          .microbatches = 4 / data,
          .partition = partition::Uniform{},
          .optimizer = {.lr = 1e-2}};
}

struct Trained {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> parameters;
};

Trained trained(const TrainerOptions& options, const std::vector<nn::LayerSpec>& model) {
  at::manual_seed(7);
  std::vector<std::pair<at::Tensor, at::Tensor>> batches;
  for (int i = 0; i < 5; ++i) batches.emplace_back(at::rand({8, kWide}), at::rand({8, 3}));
  Trained result;
  std::mutex mutex;
  comm::run_ranks(static_cast<std::int32_t>(options.mesh.size()), [&](comm::Communicator& ranks) {
    Trainer trainer(options, model, at::mse_loss, ranks);
    const mesh::Group& replicas = trainer.rank_model().groups().other_samples;
    std::vector<double> losses;
    for (const auto& [input, target] : batches) {
      losses.push_back(trainer
                           .step(input.chunk(replicas.size())[replicas.here],
                                 target.chunk(replicas.size())[replicas.here])
                           .loss);
    }
    std::map<std::string, at::Tensor> all;
    for (const char* name : {"first.weight", "mlp 0.in.weight", "mlp 0.in.bias", "mlp 0.out.weight",
                             "mlp 1.out.bias", "last.bias"}) {
      all[name] = trainer.get(name);
    }
    const std::lock_guard lock(mutex);
    if (ranks.rank().value == 0) result = {losses, all};
  });
  return result;
}

TEST(OwnSharedLayers, TrainAsOneProcess) {
  const Trained one = trained(options_on(1, 1, 1), own_model());
  for (const auto& [pipe, data, tensor] :
       {std::tuple{1, 1, 2}, {2, 1, 2}, {1, 2, 3}, {3, 1, 2}, {2, 2, 2}}) {
    SCOPED_TRACE(str("pipe ", pipe, " data ", data, " tensor ", tensor));
    const Trained shared = trained(options_on(pipe, data, tensor), own_model());
    for (std::size_t i = 0; i < one.losses.size(); ++i) {
      EXPECT_NEAR(shared.losses[i], one.losses[i], 1e-5);
    }
    // AdamW divides a gradient by its size: where it is nearly 0, a rounding may be 1e-3 of lr.
    for (const auto& [name, tensor_of_one] : one.parameters) {
      EXPECT_LE((tensor_of_one - shared.parameters.at(name)).abs().max().item<double>(), 1e-5)
          << name;
    }
  }
}

TEST(OwnSharedLayers, MoreRanksThanFeaturesAreRefused) {
  const std::string message =
      message_of([] { trained(options_on(1, 1, 4), own_model(/*hidden=*/3)); });
  EXPECT_NE(message.find("the function that makes layer \"mlp 0\": a parameter of shape [3, 6] "
                         "cannot be shared by 4 ranks: along dimension 0 it has 3 indices\n"
                         "  note: at most 3 ranks may share it"),
            std::string::npos)
      << message;
}

TEST(OwnSharedLayers, AModelWithoutPiecesIsRefused) {
  EXPECT_EQ(message_of([] {
              trained(options_on(1, 1, 2), {nn::layer<torch::nn::Linear>("fc", kWide, 3)});
            }),
            "mesh.tensor is above 1, and no layer of the model can be shared: none has pieces\n"
            "  note: nn::gpt_layers() and nn::decoder_layers() have them; for your own see "
            "nn::LayerInPieces (penstock/nn/shared.h)");
}

TEST(OwnSharedLayers, AParameterThatNoPieceNamesIsFound) {
  exchange::Pieces pieces = pieces_of_mlp();
  pieces[1].parameters.clear();
  std::vector<nn::LayerSpec> model = own_model();
  model[2] = nn::layer_in_pieces<Mlp>("mlp 0", pieces, kWide, std::int64_t{9});
  const std::string message = message_of([&] { trained(options_on(1, 1, 2), model); });
  EXPECT_NE(message.find("piece 1 of layer \"mlp 0\" uses the parameter \"out.bias\", which its "
                         "description does not name"),
            std::string::npos)
      << message;
}

// x + b, which is whole on every rank, and a part of W x: for what descriptions say of values.
class Mixed : public nn::LayerInPieces {
 public:
  explicit Mixed(const nn::Making& making)
      : LayerInPieces(1),
        out_(register_module(
            "out", std::make_shared<nn::RowLinear>(
                       making, nn::SharedLinearOptions{.in = kWide, .out = kWide, .bias = false}))),
        bias_(register_parameter("bias", at::zeros({kWide}))),
        here_(partition::part_of(kWide, making.share)) {}
  nn::Values forward_piece(std::size_t, const nn::Values& values) override {
    const at::Tensor mine = values[0].narrow(-1, here_.first, here_.count);
    return {values[0] + bias_, out_->summand(mine)};
  }

 private:
  std::shared_ptr<nn::RowLinear> out_;
  at::Tensor bias_;
  Interval here_;
};

class Sum : public nn::LayerInPieces {
 public:
  explicit Sum(const nn::Making&) : LayerInPieces(1) {}
  nn::Values forward_piece(std::size_t, const nn::Values& values) override {
    return values[0] + values[1];
  }
};

std::string refusal_of_mixed(const exchange::Piece& piece) {
  const std::vector<nn::LayerSpec> model = {
      nn::layer<torch::nn::Linear>("first", kWide, kWide),
      nn::layer_in_pieces<Mixed>("mixed", {piece}),
      nn::layer_in_pieces<Sum>("sum", {{.takes = {kInvariant, kInvariant}, .gives = {kInvariant}}}),
      nn::layer<torch::nn::Linear>("last", kWide, 3)};
  return message_of([&] { trained(options_on(1, 1, 2), model); });
}

// The gradient of x would be this rank's summand, and nobody would sum it.
TEST(OwnSharedLayers, AnInvariantValueOfWhichRanksComputePartsIsFound) {
  const std::string message =
      refusal_of_mixed({.takes = {kInvariant},
                        .gives = {kInvariant, kPartial},
                        .behind = {{.value = 1, .before = kPartial, .after = kInvariant}},
                        .parameters = {"out.weight", "bias"}});
  EXPECT_NE(message.find("piece 0 of layer \"mixed\" computes value 0, which it gives invariant, "
                         "with \"bias\", whose gradient ranks sum"),
            std::string::npos)
      << message;
}

class MixedWithoutBias : public Mixed {
 public:
  using Mixed::Mixed;
  nn::Values forward_piece(std::size_t piece, const nn::Values& values) override {
    return {values[0], Mixed::forward_piece(piece, values)[1]};
  }
};

TEST(OwnSharedLayers, AGradientThatNobodyWouldSumIsFound) {
  const std::vector<nn::LayerSpec> model = {
      nn::layer<torch::nn::Linear>("first", kWide, kWide),
      nn::layer_in_pieces<MixedWithoutBias>(
          "mixed", {{.takes = {kInvariant},
                     .gives = {kInvariant, kPartial},
                     .behind = {{.value = 1, .before = kPartial, .after = kInvariant}},
                     .parameters = {"out.weight"}}}),
      nn::layer_in_pieces<Sum>("sum", {{.takes = {kInvariant, kInvariant}, .gives = {kInvariant}}}),
      nn::layer<torch::nn::Linear>("last", kWide, 3)};
  const std::string message = message_of([&] { trained(options_on(1, 1, 2), model); });
  EXPECT_NE(message.find("piece 0 of layer \"mixed\" computes value 1, which it gives partial, of "
                         "value 0, which it takes invariant: each rank would have a summand of its "
                         "gradient, which nobody sums"),
            std::string::npos)
      << message;
}

TEST(OwnSharedLayers, DifferentBatchesAreFoundBeforeAnythingIsComputed) {
  std::mutex mutex;
  std::vector<std::string> messages;
  comm::run_ranks(2, [&](comm::Communicator& ranks) {
    Trainer trainer(options_on(1, 1, 2), own_model(), at::mse_loss, ranks);
    at::manual_seed(ranks.rank().value);
    const at::Tensor input = at::rand({8, kWide}), target = at::rand({8, 3});
    const std::string message = message_of([&] { trainer.step(input, target); });
    const std::lock_guard lock(mutex);
    messages.push_back(message);
  });
  for (const std::string& message : messages) {
    EXPECT_NE(message.find("ranks 0 and 1 share layers and were given different batches"),
              std::string::npos)
        << message;
  }
}

// Whether this rank's kernels give other bits than those of the others.
thread_local bool is_uneven = false;

// A layer without pieces, which each rank computes by itself: its outputs are the same on all.
class Uneven : public torch::nn::Module {
 public:
  Uneven() : linear_(register_module("linear", torch::nn::Linear(kWide, kWide))) {}
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor output = linear_(input);
    if (is_uneven && output.requires_grad()) {
      output.register_hook([](const at::Tensor& gradient) { return gradient * 1.001; });
    }
    return output;
  }

 private:
  torch::nn::Linear linear_;
};

TEST(OwnSharedLayers, OtherBitsOfOneRankAreFoundInTheStepThatHasThem) {
  std::vector<nn::LayerSpec> model = own_model();
  model[0] = nn::layer<Uneven>("first");
  comm::run_ranks(2, [&](comm::Communicator& ranks) {
    is_uneven = ranks.rank().value == 1;
    Trainer trainer(options_on(1, 1, 2), model, at::mse_loss, ranks);
    const std::string message =
        message_of([&] { trainer.step(at::full({8, kWide}, 0.5), at::zeros({8, 3})); });
    EXPECT_NE(message.find("first.linear.weight"), std::string::npos) << message;
  });
}

// By all ranks alike, and by one alone, which all ranks hear of.
TEST(OwnSharedLayers, WeightsThatAProgramSetsAreComparedWhereSeveralRanksHaveThem) {
  for (const bool alike : {true, false}) {
    SCOPED_TRACE(alike);
    std::mutex mutex;
    std::vector<std::string> messages;
    comm::run_ranks(2, [&](comm::Communicator& ranks) {
      Trainer trainer(options_on(1, 1, 2), own_model(), at::mse_loss, ranks);
      const at::Tensor input = at::full({8, kWide}, 0.5), target = at::full({8, 3}, 0.25);
      for (const stage::NamedParameter& each : trainer.parameters()) {
        if (each.name != "mlp 0.out.bias") continue;
        const at::NoGradGuard no_grad;
        at::Tensor(each.tensor).fill_(alike ? 2.0 : 2.0 + ranks.rank().value);
      }
      const std::string message = message_of([&] { trainer.step(input, target); });
      const std::lock_guard lock(mutex);
      messages.push_back(message);
    });
    for (const std::string& message : messages) {
      if (alike) {
        EXPECT_EQ(message, "no error");
      } else {
        EXPECT_NE(message.find("mlp 0.out.bias"), std::string::npos) << message;
      }
    }
  }
}

TEST(OwnSharedLayers, WholeTensorsAreSetAndGotByName) {
  comm::run_ranks(4, [](comm::Communicator& ranks) {
    TrainerOptions options = options_on(1, 2, 2);
    options.zero.stage = ZeroStage::Parameters;
    Trainer trainer(options, own_model(), at::mse_loss, ranks);
    for (const char* name : {"mlp 0.in.weight", "mlp 0.out.weight", "mlp 0.out.bias"}) {
      const at::Tensor values =
          at::arange(trainer.get(name).numel(), at::kFloat).view(trainer.get(name).sizes());
      trainer.set(name, values);
      EXPECT_TRUE(same_bits(trainer.get(name), values)) << name;
    }
  });
}

}  // namespace
}  // namespace penstock::train
