// Parameters and activations in bf16 and fp16, with masters in float.
#include "penstock/runtime/train/precision.h"

#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "tests/train/trained.h"

namespace penstock::train {
namespace {

using testing_support::same_bits;

constexpr std::int32_t kMicrobatches = 4;
constexpr std::array kStages = {ZeroStage::OptimizerStates, ZeroStage::Gradients,
                                ZeroStage::Parameters};

Precision fp16(double scale) {
  return {.type = at::kHalf, .gradient_scale = {.enabled = true, .loss_scale = scale}};
}

struct Types {
  const char* name = "";
  Precision precision;
};

std::vector<Types> all_types() {
  Precision in_float = fp16(0);
  in_float.sums = at::kFloat;
  return {{"bf16", {.type = at::kBFloat16}},
          {"bf16_added_in_float", {.type = at::kBFloat16, .sums = at::kFloat}},
          {"fp16", fp16(0)},
          {"fp16_added_in_float", in_float},
          {"fp16_at_138", fp16(138.0)}};
}

TrainerOptions options_of(const Precision& precision, std::int32_t pipe, std::int32_t data,
                          const char* schedule = "1f1b") {
  return {.mesh = {.pipe = pipe, .data = data},
          .schedule = schedule,
          .microbatches = kMicrobatches,
          .partition = partition::Uniform{},
          .optimizer = {.lr = 3e-3, .weight_decay = 0.1},
          .gradient_clipping = 0.5,
          .precision = precision,
          .zero = {.bucket_bytes = 3000, .limits = {.budget_bytes = 9000, .prefetch_bytes = 3000}}};
}

std::vector<Batch2> batches_of(const Kind& kind, std::int32_t data, int steps) {
  const std::int64_t samples = 2 * kMicrobatches * data;
  const std::vector<Batch2> two = {kind.batch(samples, kSequence), kind.batch(samples, kSequence)};
  std::vector<Batch2> batches;
  for (int i = 0; i < steps; ++i) batches.push_back(two[static_cast<std::size_t>(i % 2)]);
  return batches;
}

class ShortTypes : public testing::TestWithParam<Types> {};

TEST_P(ShortTypes, HaveTheBitsOfWholeReplicasInEveryZeroStage) {
  const Kind kind = kind_named("Gpt");
  const auto batches = batches_of(kind, 2, 5);
  for (const char* schedule : {"1f1b", "gpipe", "interleaved_1f1b", "zbv"}) {
    TrainerOptions options = options_of(GetParam().precision, 2, 2, schedule);
    const Trained whole = train(options, kind, batches);
    EXPECT_LT(whole.reports.back().loss, whole.reports.front().loss);
    for (const auto& [name, tensor] : whole.parameters) {
      EXPECT_EQ(tensor.scalar_type(), GetParam().precision.type) << name;
    }
    for (const ZeroStage stage : kStages) {
      SCOPED_TRACE(str(schedule, ", stage ", static_cast<int>(stage)));
      options.zero.stage = stage;
      EXPECT_TRUE(same(train(options, kind, batches), whole));
    }
  }
}

// Stages change no bit either: ties within a rank and over ranks, buffers, random numbers, inputs
// of several types.
TEST_P(ShortTypes, HaveTheBitsOfOneStageInAPipeline) {
  for (const char* name :
       {"TiedGpt", "Ties", "GptWithDropout", "Skips", "BatchNorm", "TrainedLoss"}) {
    const Kind kind = kind_named(name);
    const auto batches = batches_of(kind, 2, 4);
    const Trained one = train(options_of(GetParam().precision, 1, 2), kind, batches);
    for (const ZeroStage stage : {ZeroStage::Off, ZeroStage::Gradients, ZeroStage::Parameters}) {
      TrainerOptions options = options_of(GetParam().precision, 2, 2, "zbv");
      options.zero.stage = stage;
      EXPECT_TRUE(same(train(options, kind, batches), one))
          << name << ", stage " << static_cast<int>(stage);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ShortTypes, testing::ValuesIn(all_types()),
                         [](const auto& types) { return std::string(types.param.name); });

// The losses and norms of float, up to the types' rounding: 2^-8 and 2^-11 of a number, and here a
// few layers of them.
TEST(Precision, LossesAndNormsAreThoseOfFloatAboutRounded) {
  const Kind kind = kind_named("Gpt");
  const auto batches = batches_of(kind, 1, 3);
  const Trained whole = train(options_of({}, 1, 1), kind, batches);
  for (const Types& types : all_types()) {
    const Trained rounded = train(options_of(types.precision, 1, 1), kind, batches);
    const double bound = types.precision.type == at::kHalf ? 0.01 : 0.05;
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const auto expect_near = [&](double a, double b) { EXPECT_NEAR(a, b, bound * b); };
      SCOPED_TRACE(str(types.name, ", step ", i + 1));
      expect_near(rounded.reports[i].loss, whole.reports[i].loss);
      expect_near(rounded.reports[i].grad_norm, whole.reports[i].grad_norm);
    }
  }
}

class Scales : public nn::Layer {
 public:
  Scales() : weight_(register_parameter("weight", at::full({1}, 1.0))) {}
  at::Tensor forward(const at::Tensor& input) override { return input * weight_; }

 private:
  at::Tensor weight_;
};

// 32 gradients of 1 after one of 4,096: in bf16, whose numbers are 32 apart there, none is left.
TEST(Precision, SumsInFloatKeepWhatTheParametersTypeLoses) {
  const Kind kind{
      "Sums",
      {nn::layer("scale", [] { return std::make_shared<Scales>(); })},
      [](const at::Tensor& output, const at::Tensor& target) { return (output * target).mean(); },
      {}};
  for (const std::int32_t data : {1, 2}) {
    for (const bool in_float : {false, true}) {
      Precision precision{.type = at::kBFloat16};
      if (in_float) precision.sums = at::kFloat;
      TrainerOptions options = options_of(precision, 1, data);
      options.loss_scale = LossScale::sum();
      options.microbatches = 33;
      at::Tensor targets = at::full({33 * data, 1}, 1.0);
      for (std::int32_t replica = 0; replica < data; ++replica) targets[33 * replica] = 4096.0;
      const Trained trained = train(options, kind, {{at::full({33 * data, 1}, 1.0), targets}});
      EXPECT_EQ(trained.reports[0].grad_norm, data * (in_float ? 4128.0 : 4096.0));
    }
  }
}

// Replica 1's gradients are too large for fp16 at this scale, and replica 0's are not.
TEST(GradientOverflow, OnOneReplicaSkipsTheStepOnAllRanks) {
  const Kind kind = kind_named("Mlp");
  const auto batch = [&](double of_replica_1) -> Batch2 {
    const at::Tensor targets = at::full({8, kWidth}, 0.5);
    targets.slice(0, 4).fill_(of_replica_1);
    return {at::rand({8, kWidth}) - 0.5, targets};
  };
  const std::vector<Batch2> batches = {batch(0.5), batch(30000.0), batch(0.5), batch(0.5)};
  Precision precision = fp16(0);
  precision.gradient_scale.initial_scale_power = 8;
  precision.gradient_scale.hysteresis = 1;
  for (const std::int32_t pipe : {1, 2}) {
    for (const auto stage : {ZeroStage::Off, ZeroStage::Gradients, ZeroStage::Parameters}) {
      TrainerOptions options = options_of(precision, pipe, 2);
      options.zero.stage = stage;
      SCOPED_TRACE(str("stage ", static_cast<int>(stage), ", ", pipe, " pipeline ranks"));
      const Trained trained = train(options, kind, batches);
      for (std::size_t i = 0; i < batches.size(); ++i) {
        const StepReport& report = trained.reports[i];
        EXPECT_EQ(report.step, static_cast<std::int64_t>(i + 1));
        EXPECT_EQ(report.skipped, i == 1) << "step " << report.step;
        EXPECT_EQ(report.gradient_scale, i <= 1 ? 256.0 : 128.0) << "step " << report.step;
        EXPECT_EQ(std::isfinite(report.grad_norm), i != 1);
      }
      // As if that batch had never been.
      options.precision = fp16(256.0);
      const Trained without = train(options, kind, {batches[0], batches[2]});
      const Trained with = train(options, kind, {batches[0], batches[1], batches[2]});
      EXPECT_TRUE(with.reports[1].skipped);
      for (const auto& [name, tensor] : with.parameters) {
        EXPECT_TRUE(same_bits(tensor, without.parameters.at(name))) << name;
      }
    }
  }
}

TEST(GradientOverflow, AtTheSmallestScaleIsAnErrorOnAllRanks) {
  const Kind kind = kind_named("Mlp");
  Precision precision = fp16(0);
  precision.gradient_scale.initial_scale_power = 8;
  precision.gradient_scale.hysteresis = 1;
  precision.gradient_scale.min_loss_scale = 256;
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    Trainer trainer(options_of(precision, 1, 2), kind.model, kind.loss, communicator);
    const at::Tensor input = at::full({4, kWidth}, 0.5);
    const at::Tensor target = at::full({4, kWidth}, communicator.rank().value == 0 ? 0.5 : 30000.0);
    EXPECT_THROW(trainer.step(input, target), NumericsError);
    EXPECT_EQ(trainer.updates().skipped_steps(), 1);
  });
}

}  // namespace
}  // namespace penstock::train
