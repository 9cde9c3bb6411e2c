// Weights that a program sets are what training goes on from, in every precision and stage of ZeRO,
// however they are set; ranks that set them differently are told which.
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <array>
#include <functional>
#include <string>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/saving/checkpoints.h"
#include "tests/support/message_of.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/model_kinds.h"

namespace penstock::train {
namespace {

using saving::Checkpoints;
using testing_support::message_of;
using testing_support::same_bits;

constexpr std::array kStages = {ZeroStage::Off, ZeroStage::OptimizerStates, ZeroStage::Gradients,
                                ZeroStage::Parameters};
constexpr std::array kTypes = {at::kFloat, at::kBFloat16, at::kHalf};

Kind small() {
  std::vector<nn::LayerSpec> model;
  for (int i = 0; i < 4; ++i) {
    model.push_back(linear(str("fc", i)));
    model.push_back(nn::layer<torch::nn::Tanh>(str("tanh", i)));
  }
  return {"Small", model, squares, vectors};
}

// Trains at its first update, and not afterwards: what is set stays.
TrainerOptions options_of(ZeroStage stage, at::ScalarType type, const mesh::Shape& mesh = {1, 2}) {
  TrainerOptions options{
      .mesh = mesh,
      .microbatches = 2,
      .learning_rate = [](std::int64_t updates) { return updates == 0 ? 0.1 : 0; },
      .zero = {.stage = stage}};
  options.precision.type = type;
  options.precision.gradient_scale = {.enabled = type == at::kHalf, .loss_scale = 64};
  return options;
}

std::string name_of(ZeroStage stage, at::ScalarType type) {
  return str(c10::toString(type), " ZeRO ", config::number_of(stage));
}

enum class Way : std::uint8_t { InPlace, BehindAutograd, OtherMemory };

void set_all(Trainer& trainer, double value, Way way) {
  const auto whole = trainer.rank_model().whole_parameters();
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : trainer.parameters()) {
    switch (way) {
      case Way::InPlace:
        tensor.fill_(value);
        break;
      case Way::BehindAutograd:
        tensor.data().fill_(value);
        break;
      case Way::OtherMemory:
        tensor.set_data(at::full_like(tensor, value));
        break;
    }
  }
}

void expect_all(Trainer& trainer, double value) {
  const auto whole = trainer.rank_model().whole_parameters();
  for (const auto& [name, tensor] : trainer.parameters()) {
    EXPECT_TRUE(same_bits(tensor.detach(), at::full_like(tensor, value).detach())) << name;
  }
}

TEST(SetWeights, AreWhatTheNextStepGoesOnFromInEveryPrecisionAndStageOfZero) {
  const Kind kind = small();
  const Batch2 batch = kind.batch(8, 0);
  for (const ZeroStage stage : kStages) {
    for (const at::ScalarType type : kTypes) {
      for (const Way way : {Way::InPlace, Way::BehindAutograd, Way::OtherMemory}) {
        if (way == Way::OtherMemory && stage == ZeroStage::Parameters) continue;
        SCOPED_TRACE(str(name_of(stage, type), " way ", static_cast<int>(way)));
        comm::run_ranks(2, [&](comm::Communicator& communicator) {
          Trainer trainer(options_of(stage, type), kind.model, kind.loss, communicator);
          trainer.step(batch.inputs, batch.targets);
          set_all(trainer, 0.3, way);
          const double loss = trainer.evaluate(batch.inputs, batch.targets);
          const StepReport report = trainer.step(batch.inputs, batch.targets);
          EXPECT_NEAR(report.loss, loss, 1e-6);
          expect_all(trainer, 0.3);
          StepReport halves = trainer.compute_gradients(batch.inputs, batch.targets);
          set_all(trainer, 0.6, way);  // Between the halves of a step.
          trainer.update(halves);
          expect_all(trainer, 0.6);
          trainer.step(batch.inputs, batch.targets);  // The ranks compare what was set.
          expect_all(trainer, 0.6);
        });
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(SetWeights, AreSavedAsTheyWereSet) {
  const Kind kind = small();
  const Batch2 batch = kind.batch(8, 0);
  for (const ZeroStage stage : {ZeroStage::Off, ZeroStage::Parameters}) {
    const testing_support::TemporaryFolder folder;
    const auto with = [&](const std::function<void(Trainer&, Checkpoints&)>& body) {
      comm::run_ranks(2, [&](comm::Communicator& communicator) {
        execute::Progress progress;
        Trainer trainer(options_of(stage, at::kBFloat16), kind.model, kind.loss, communicator);
        Checkpoints checkpoints(trainer, communicator, progress, {.directory = folder.path()}, {});
        body(trainer, checkpoints);
      });
    };
    with([&](Trainer& trainer, Checkpoints& checkpoints) {
      trainer.step(batch.inputs, batch.targets);
      set_all(trainer, 0.3, Way::InPlace);
      checkpoints.save();
    });
    with([&](Trainer& trainer, Checkpoints& checkpoints) {
      ASSERT_TRUE(checkpoints.resume());
      expect_all(trainer, 0.3);
      set_all(trainer, 0.6, Way::InPlace);
      trainer.step(batch.inputs, batch.targets);
      expect_all(trainer, 0.6);
    });
  }
}

// Of a rank alone, or of all of them to values of their own.
std::string refusal(const TrainerOptions& options, const Kind& kind,
                    const std::function<void(Trainer&, std::int32_t)>& change) {
  const Batch2 batch = kind.batch(8, 0);
  return message_of([&] {
    comm::run_ranks(options.mesh.pipe * options.mesh.data, [&](comm::Communicator& communicator) {
      Trainer trainer(options, kind.model, kind.loss, communicator);
      trainer.step(batch.inputs, batch.targets);
      change(trainer, communicator.rank().value);
      trainer.step(batch.inputs, batch.targets);
    });
  });
}

TEST(SetWeights, OfOneReplicaAloneAreRefusedByName) {
  const Kind kind = small();
  for (const ZeroStage stage : kStages) {
    for (const bool set_by_both : {false, true}) {
      SCOPED_TRACE(str(config::number_of(stage), set_by_both ? " both" : " one"));
      const std::string said =
          refusal(options_of(stage, at::kFloat), kind, [&](Trainer& trainer, std::int32_t rank) {
            const auto whole = trainer.rank_model().whole_parameters();
            const torch::NoGradGuard no_grad;
            if (rank == 1 || set_by_both) trainer.parameters()[1].tensor.fill_(rank);
          });
      EXPECT_NE(said.find("ranks 0 and 1 do not take the same step"), std::string::npos) << said;
      EXPECT_NE(said.find("set parameter fc0.bias="), std::string::npos) << said;
    }
  }
}

TEST(SetWeights, OfOneStageThatSharesThemAreRefusedByName) {
  const std::string said = refusal(options_of(ZeroStage::Off, at::kFloat, {2, 1}),
                                   kind_named("Ties"), [&](Trainer& trainer, std::int32_t rank) {
                                     const torch::NoGradGuard no_grad;
                                     for (const auto& [name, tensor] : trainer.parameters()) {
                                       if (rank == 1 && name == "first.weight") tensor.fill_(0.5);
                                     }
                                   });
  EXPECT_NE(said.find("set parameter first.weight="), std::string::npos) << said;
}

TEST(SetWeights, ByNameAreWholeOnEveryRankOfEveryLayout) {
  const Kind kind = small();
  const Batch2 batch = kind.batch(8, 0);
  const at::Tensor weight = at::rand({kWidth, kWidth});
  for (const ZeroStage stage : kStages) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const mesh::Shape mesh : {mesh::Shape{2, 1}, {1, 2}, {2, 2}}) {
        SCOPED_TRACE(str(name_of(stage, type), " ", mesh.pipe, "x", mesh.data));
        comm::run_ranks(mesh.pipe * mesh.data, [&](comm::Communicator& communicator) {
          Trainer trainer(options_of(stage, type, mesh), kind.model, kind.loss, communicator);
          const std::string last = "fc3.weight";
          trainer.set("fc0.weight", weight);
          EXPECT_TRUE(same_bits(trainer.get("fc0.weight"), weight)) << "the master is exact";
          trainer.step(batch.inputs, batch.targets);
          EXPECT_FALSE(at::equal(trainer.get("fc0.weight"), weight));
          trainer.set(last, weight);
          trainer.set(last, weight.abs() + 1, "exp_avg_sq");
          EXPECT_TRUE(same_bits(trainer.get(last, "exp_avg_sq"), weight.abs() + 1));
          EXPECT_EQ(trainer.get(last, "step").item<double>(), 1);
          trainer.step(batch.inputs, batch.targets);  // At the rate 0.
          EXPECT_TRUE(same_bits(trainer.get(last), weight));
          const auto whole = trainer.rank_model().whole_parameters();
          for (const auto& [name, tensor] : trainer.parameters()) {
            EXPECT_TRUE(name != last || same_bits(tensor.detach(), weight.to(type)));
          }
        });
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(SetWeights, ByNameAreAlsoBuffersAndTiedParameters) {
  const Kind norms = kind_named("BatchNorm"), ties = kind_named("Ties");
  const Batch2 batch = ties.batch(8, 0);
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    Trainer trainer(options_of(ZeroStage::Off, at::kFloat, {2, 1}), norms.model, norms.loss,
                    communicator);
    trainer.set("norm2.running_mean", at::full({kWidth}, 3.0));
    EXPECT_TRUE(same_bits(trainer.get("norm2.running_mean"), at::full({kWidth}, 3.0)));
    trainer.set("norm1.num_batches_tracked", at::scalar_tensor(7, at::kLong));
    EXPECT_EQ(trainer.get("norm1.num_batches_tracked").item<std::int64_t>(), 7);
    Trainer tied(options_of(ZeroStage::Off, at::kFloat, {2, 1}), ties.model, ties.loss,
                 communicator);
    const at::Tensor weight = at::full({kWidth, kWidth}, 0.25);
    tied.set("first.weight", weight);
    tied.step(batch.inputs, batch.targets);
    const at::Tensor now = tied.get("first.weight");
    for (const stage::Stage& stage : tied.rank_model().stages()) {
      for (const auto& [name, tensor] : stage.parameters()) {
        EXPECT_TRUE(name != "first.weight" || same_bits(tensor.detach(), now));
      }
    }
  });
}

TEST(SetWeights, ByNameAreRefusedOnEveryRankWithTheReason) {
  const Kind kind = small();
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    Trainer trainer(options_of(ZeroStage::Off, at::kFloat, {2, 1}), kind.model, kind.loss,
                    communicator);
    const auto says = [&](const std::function<void()>& call, const std::string& words) {
      const std::string said = message_of(call);
      EXPECT_NE(said.find(words), std::string::npos) << said;
    };
    says([&] { trainer.get("fc3.weigth"); },
         "get(): the model has no tensor \"fc3.weigth\"; did you mean \"fc3.weight\"?");
    says([&] { trainer.set("fc3.weight", at::zeros({3})); },
         "set(): tensor \"fc3.weight\" has the sizes [8, 8], and is given [3]");
    says([&] { trainer.get("fc3.weight", "exp_avg"); },
         "there is no \"exp_avg\" of \"fc3.weight\"");
    says([&] { trainer.set("fc3.weight", at::zeros({8, 8}), "momentum"); },
         "the optimizer keeps: step, exp_avg, exp_avg_sq");
    says([&] { trainer.set("fc0.bias", at::full({8}, communicator.rank().value)); },
         "given tensor fc0.bias=");
  });
}

}  // namespace
}  // namespace penstock::train
