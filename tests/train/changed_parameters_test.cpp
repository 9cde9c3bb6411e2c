// A program that gives a parameter other memory, type or shape between steps: training goes on with
// what it is now, or says which parameter it is.
#include <gtest/gtest.h>

#include <mutex>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "tests/support/same_bits.h"
#include "tests/train/model_kinds.h"

namespace penstock::train {
namespace {

using testing_support::same_bits;

enum class Way : std::uint8_t { InPlace, OtherMemory };

TrainerOptions options_of(config::ZeroStage stage, at::ScalarType type) {
  TrainerOptions options{.mesh = {.data = 2}, .microbatches = 2, .zero = {.stage = stage}};
  options.precision.type = type;
  return options;
}

// The parameters after two steps, with others between backward and update, and between the steps.
std::vector<at::Tensor> trained(const TrainerOptions& options, const Kind& kind, Way way) {
  std::vector<at::Tensor> result;
  static const Batch2 batch = kind.batch(8, 0);
  const auto set = [&](Trainer& trainer, std::size_t number, double value) {
    const at::NoGradGuard no_grad;
    const at::Tensor& tensor = trainer.parameters()[number].tensor;
    const at::Tensor values = at::full_like(tensor, value);
    way == Way::InPlace ? void(at::Tensor(tensor).copy_(values)) : tensor.set_data(values);
  };
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    Trainer trainer(options, kind.model, kind.loss, communicator);
    trainer.step(batch.inputs, batch.targets);
    set(trainer, 0, 0.25);
    StepReport report = trainer.compute_gradients(batch.inputs, batch.targets);
    set(trainer, 2, 0.5);
    trainer.update(report);
    trainer.step(batch.inputs, batch.targets);
    if (communicator.rank().value != 0) return;
    for (const auto& each : trainer.parameters()) result.push_back(each.tensor.detach().clone());
  });
  return result;
}

TEST(ChangedParameters, TrainOnInOtherMemoryAsIfTheyHadBeenChangedInPlace) {
  const Kind kind = kind_named("Mlp");
  for (const auto stage :
       {config::ZeroStage::Off, config::ZeroStage::OptimizerStates, config::ZeroStage::Gradients}) {
    const TrainerOptions options = options_of(stage, at::kFloat);
    const auto expected = trained(options, kind, Way::InPlace);
    const auto found = trained(options, kind, Way::OtherMemory);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(same_bits(found[i], expected[i])) << i << " " << config::number_of(stage);
    }
  }
}

// The master, too: the parameter would go back to where it was.
TEST(ChangedParameters, OfAShortTypeHaveTheirMastersFollow) {
  const Kind kind = kind_named("Mlp");
  for (const auto stage : {config::ZeroStage::Off, config::ZeroStage::Gradients}) {
    const auto found = trained(options_of(stage, at::kBFloat16), kind, Way::OtherMemory);
    EXPECT_LE((found[0] - 0.25).abs().max().item<double>(), 0.02);
    EXPECT_LE((found[2] - 0.5).abs().max().item<double>(), 0.02);
  }
}

// What a step says of a parameter that `change` was called with.
std::string refusal(config::ZeroStage stage, const std::function<void(const at::Tensor&)>& change) {
  const Kind kind = kind_named("Mlp");
  const Batch2 batch = kind.batch(8, 0);
  std::string said;
  std::mutex mutex;
  try {
    comm::run_ranks(2, [&](comm::Communicator& communicator) {
      Trainer trainer(options_of(stage, at::kFloat), kind.model, kind.loss, communicator);
      trainer.step(batch.inputs, batch.targets);
      change(trainer.parameters()[0].tensor);
      try {
        trainer.step(batch.inputs, batch.targets);
      } catch (const Error& error) {
        const std::lock_guard lock(mutex);
        said = error.message() + " of " + trainer.parameters()[0].name;
        throw;
      }
    });
  } catch (const Error&) {
  }
  return said;
}

TEST(ChangedParameters, OfAnotherTypeOrShapeAreRefusedByName) {
  for (const auto stage : {config::ZeroStage::Off, config::ZeroStage::Gradients}) {
    const std::string cast = refusal(
        stage, [](const at::Tensor& tensor) { tensor.set_data(tensor.detach().to(at::kDouble)); });
    EXPECT_NE(cast.find("is Double"), std::string::npos) << cast;
    const std::string resized = refusal(
        stage, [](const at::Tensor& tensor) { tensor.set_data(tensor.detach().flatten()); });
    EXPECT_NE(resized.find("when training was set up"), std::string::npos) << resized;
  }
}

TEST(ChangedParameters, ThatComeAndGoAreRefusedByName) {
  const std::string said = refusal(config::ZeroStage::Parameters, [](const at::Tensor& tensor) {
    tensor.set_data(at::zeros(tensor.sizes(), tensor.options().requires_grad(false)));
  });
  EXPECT_NE(said.find("has been given other memory"), std::string::npos) << said;
}

}  // namespace
}  // namespace penstock::train
