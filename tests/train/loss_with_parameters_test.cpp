// A loss that is a module is trained, saved and evaluated as a layer is.  Layouts, ZeRO, types and
// checkpoints have it as the kind of model "TrainedLoss" (model_kinds.h).
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <mutex>

#include "penstock/core/error.h"
#include "penstock/train/trainer.h"
#include "tests/support/message_of.h"

namespace penstock::train {
namespace {

using at::Tensor;

// Weights of two terms, and a count of the microbatches that trained.
struct Weighted : torch::nn::Module {
  Weighted()
      : logs(register_parameter("logs", at::zeros({2}))),
        seen(register_buffer("seen", at::zeros({1}))) {}
  Tensor forward(const Tensor& y, const Tensor& t) {
    if (is_training()) seen.add_(1);
    return (-logs).exp()[0] * at::mse_loss(y, t) + (-logs).exp()[1] * (y - t).abs().mean() +
           logs.sum();
  }
  Tensor logs, seen;
};

const std::vector<nn::LayerSpec>& model() {
  static const std::vector<nn::LayerSpec> layers = {nn::layer<torch::nn::Linear>("a", 4, 16),
                                                    nn::layer<torch::nn::Linear>("b", 16, 1)};
  return layers;
}

TrainerOptions options(partition::Method partition) {
  return {.mesh = {.pipe = 2},
          .microbatches = 2,
          .partition = std::move(partition),
          .optimizer = {.type = config::OptimizerType::Sgd, .lr = 0.1}};
}

TEST(LossWithParameters, IsTrainedAsInAPlainLoop) {
  const Tensor x = at::rand({8, 4}), t = x.sum(1, true).sin();
  const auto a = nn::build(model()[0], 1234, 0), b = nn::build(model()[1], 1234, 1);
  Weighted plain;
  std::vector<Tensor> parameters = a->parameters();
  for (const Tensor& each : b->parameters()) parameters.push_back(each);
  parameters.push_back(plain.logs);
  torch::optim::SGD optimizer(parameters, 0.1);
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    for (int m = 0; m < 2; ++m) {
      (plain.forward(b->forward(a->forward(x.chunk(2)[m])), t.chunk(2)[m]) / 2).backward();
    }
    optimizer.step();
  }
  // The methods know nothing of the loss.
  for (const partition::Method& method :
       {partition::Method(partition::ByParameters{}), partition::Method(partition::Uniform{}),
        partition::Method(partition::ByBounds{{0, 1, 2}}),
        partition::Method(partition::ByCost{{1.0, 1.0}})}) {
    comm::run_ranks(2, [&](comm::Communicator& communicator) {
      Trainer trainer(options(method), model(), nn::loss<Weighted>(), communicator);
      for (int step = 0; step < 4; ++step) trainer.step(x, t);
      const double before = trainer.evaluate(x, t);
      EXPECT_EQ(trainer.evaluate(x, t), before);
      EXPECT_EQ(trainer.infer(x).defined(), communicator.rank().value == 1);
      if (communicator.rank().value == 0) return;
      const stage::NamedParameter& last = trainer.parameters().back();
      EXPECT_EQ(last.name, "loss.logs");
      EXPECT_LE((last.tensor - plain.logs).abs().max().item<double>(), 1e-6);
      const auto& state = trainer.rank_model().stages().back().layers().state();
      EXPECT_EQ(state.back().name, "loss.seen");
      EXPECT_EQ(state.back().tensor.item<double>(), 8) << "of training, not of evaluations";
    });
  }
}

TEST(LossWithParameters, HasANameThatNoLayerMayHave) {
  const std::vector<nn::LayerSpec> layers = {nn::layer<torch::nn::Linear>("loss", 4, 1)};
  const std::string text = testing_support::message_of([&] {
    comm::run_ranks(1, [&](comm::Communicator& communicator) {
      Trainer trainer({}, layers, nn::loss<Weighted>(), communicator);
    });
  });
  EXPECT_NE(text.find("two layers of the model are called \"loss\""), std::string::npos) << text;
}

// Each rank of the last stage has its own.
TEST(LossWithParameters, IsMadeForEachReplica) {
  TrainerOptions replicas = options(partition::Uniform{});
  replicas.mesh = {.pipe = 2, .data = 2};
  const Tensor x = at::rand({8, 4}), t = at::rand({8, 1});
  std::mutex mutex;
  std::vector<Tensor> copies;
  comm::run_ranks(4, [&](comm::Communicator& communicator) {
    Trainer trainer(replicas, model(), [] { return std::make_unique<Weighted>(); }, communicator);
    for (int step = 0; step < 2; ++step) trainer.step(x, t);
    if (!trainer.rank_model().is_last_stage()) return;
    const std::lock_guard lock(mutex);
    copies.push_back(trainer.parameters().back().tensor.detach());
  });
  ASSERT_EQ(copies.size(), 2u);
  EXPECT_FALSE(copies[0].is_alias_of(copies[1]));
  EXPECT_EQ((copies[0] - copies[1]).abs().max().item<double>(), 0);
  EXPECT_GT(copies[0].abs().max().item<double>(), 0);
}

// What a captured tensor is put into, as a layer and as a loss.
struct Scales : torch::nn::Module {
  explicit Scales(const Tensor& tensor) : by(register_parameter("by", tensor)) {}
  Tensor forward(const Tensor& x) { return x * by[0]; }
  Tensor by;
};
struct Weighs : torch::nn::Module {
  explicit Weighs(const Tensor& tensor) : by(register_parameter("by", tensor)) {}
  Tensor forward(const Tensor& y, const Tensor& t) { return by[1] * at::mse_loss(y, t); }
  Tensor by;
};

// As layers are (nn/owned_memory.h).
TEST(LossWithParameters, IsRefusedWhereTwoRanksWouldHaveOneOrALayerHasIt) {
  const auto refusal = [](std::int32_t replicas, const std::vector<nn::LayerSpec>& layers,
                          const nn::Loss& loss) {
    return testing_support::message_of([&] {
      comm::run_ranks(replicas, [&](comm::Communicator& communicator) {
        const Trainer trainer({.mesh = {.data = replicas}}, layers, loss, communicator);
      });
    });
  };
  const auto weighted = std::make_shared<Weighted>();
  const std::string shared = refusal(2, model(), [weighted] { return weighted; });
  EXPECT_NE(shared.find("is made of the parameter \"logs\", which layer \"loss\" of rank "),
            std::string::npos)
      << shared;
  const Tensor memory = at::zeros({2});
  const std::string both =
      refusal(1, {nn::layer("scales", [memory] { return std::make_shared<Scales>(memory); })},
              [memory] { return std::make_shared<Weighs>(memory); });
  EXPECT_NE(both.find("layer \"loss\" of rank 0 is made of the parameter \"by\", which layer "
                      "\"scales\" of rank 0 has, too"),
            std::string::npos)
      << both;
}

// Trainers in a container: what parts of one point to does not move.
TEST(Trainers, MoveBetweenSteps) {
  const Tensor x = at::rand({8, 4}), t = at::rand({8, 1});
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    std::vector<double> losses;
    Trainer stays(options(partition::Uniform{}), model(), nn::loss<Weighted>(), communicator);
    for (int step = 0; step < 3; ++step) losses.push_back(stays.step(x, t).loss);
    std::vector<Trainer> trainers;
    for (int i = 0; i < 3; ++i) {
      trainers.emplace_back(options(partition::Uniform{}), model(), nn::loss<Weighted>(),
                            communicator);
      EXPECT_EQ(trainers[0].step(x, t).loss, losses[static_cast<std::size_t>(i)]);
    }
    trainers[0] = std::move(trainers[2]);
    EXPECT_EQ(trainers[0].step(x, t).loss, losses[0]);
    EXPECT_EQ(trainers[0].evaluate(x, t), trainers[0].evaluate(x, t));
  });
}

}  // namespace
}  // namespace penstock::train
