// Parameter groups of a Trainer's optimizer: by the model's names, on every layout.
#include <ATen/ops/allclose.h>
#include <gtest/gtest.h>

#include "penstock/core/error.h"
#include "tests/support/message_of.h"
#include "tests/train/trained.h"

namespace penstock::train {
namespace {

TrainerOptions options_of(std::int32_t pipe, std::int32_t data) {
  TrainerOptions options{
      .mesh = {.pipe = pipe, .data = data},
      .microbatches = 2,
      .optimizer = {.type = config::OptimizerType::Sgd, .lr = 0.1, .weight_decay = 0.3}};
  options.optimizer.groups = {{.parameters = "bias$", .lr = 0.02, .weight_decay = 0.0}};
  return options;
}

TEST(ParameterGroups, HaveTheirOwnRatesAndDecays) {
  const Kind kind = kind_named("Mlp");
  const Batch2 batch = kind.batch(8, 0);
  comm::run_ranks(1, [&](comm::Communicator& communicator) {
    Trainer trainer(options_of(1, 1), kind.model, kind.loss, communicator);
    std::map<std::string, at::Tensor> before;
    for (const auto& [name, tensor] : trainer.parameters()) before[name] = tensor.detach().clone();
    StepReport report = trainer.compute_gradients(batch.inputs, batch.targets);
    trainer.update(report);
    int biases = 0;
    for (const auto& [name, tensor] : trainer.parameters()) {
      const bool is_bias = name.ends_with("bias");
      biases += is_bias ? 1 : 0;
      const at::Tensor decayed = tensor.grad() + (is_bias ? 0.0 : 0.3) * before[name];
      const at::Tensor expected = before[name] - (is_bias ? 0.02 : 0.1) * decayed;
      EXPECT_TRUE(at::allclose(tensor.detach(), expected, 1e-6, 1e-7)) << name;
    }
    EXPECT_GT(biases, 0);
  });
}

TEST(ParameterGroups, AreTheSameOnEveryLayout) {
  for (const char* name : {"Mlp", "Ties"}) {
    const Kind kind = kind_named(name);
    const std::vector<Batch2> batches = {kind.batch(8, 0), kind.batch(8, 0)};
    const Trained whole = train(options_of(1, 2), kind, batches);
    for (const ZeroStage stage : {ZeroStage::Off, ZeroStage::OptimizerStates, ZeroStage::Gradients,
                                  ZeroStage::Parameters}) {
      TrainerOptions options = options_of(2, 2);
      options.zero.stage = stage;
      options.zero.bucket_bytes = 300;
      EXPECT_TRUE(same(train(options, kind, batches), whole))
          << name << ", ZeRO " << static_cast<int>(stage);
    }
  }
}

TEST(ParameterGroups, OneWithoutAParameterIsAnErrorOnEveryRank) {
  const Kind kind = kind_named("Mlp");
  TrainerOptions options = options_of(2, 1);
  options.optimizer.groups.push_back({.parameters = "bais$", .lr = 0.02});
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    const std::string message =
        testing_support::message_of([&] { Trainer(options, kind.model, kind.loss, communicator); });
    EXPECT_NE(message.find("optimizer.groups[1].parameters = \"bais$\""), std::string::npos)
        << message;
  });
}

TEST(ParameterGroups, OfTwoRanksAreCompared) {
  const Kind kind = kind_named("Mlp");
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    TrainerOptions options = options_of(1, 2);
    if (communicator.rank().value == 1) options.optimizer.groups[0].parameters = "weight$";
    const std::string message =
        testing_support::message_of([&] { Trainer(options, kind.model, kind.loss, communicator); });
    EXPECT_NE(message.find("weight$"), std::string::npos) << message;
  });
}

}  // namespace
}  // namespace penstock::train
