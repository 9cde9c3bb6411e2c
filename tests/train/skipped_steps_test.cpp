// Steps that a gradient scale skips: what they leave alone.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "penstock/core/text.h"
#include "penstock/train/trainer.h"

namespace penstock::train {
namespace {

constexpr std::int64_t kWidth = 4;

TrainerOptions options_of(const mesh::Shape& mesh) {
  TrainerOptions options{.mesh = mesh, .microbatches = 2, .partition = partition::Uniform{}};
  options.learning_rate = [](std::int64_t updates) {
    return 1e-3 * static_cast<double>(updates + 1);
  };
  options.precision = {.type = at::kHalf,
                       .gradient_scale = {.enabled = true, .initial_scale_power = 8}};
  return options;
}

std::vector<nn::LayerSpec> model() {
  return {nn::layer<torch::nn::BatchNorm1d>("norm", kWidth),
          nn::layer<torch::nn::Linear>("out", kWidth, kWidth)};
}

at::Tensor loss_of(const at::Tensor& y, const at::Tensor& t) { return at::mse_loss(y, t); }

std::map<std::string, at::Tensor> state_of_rank(Trainer& trainer) {
  std::map<std::string, at::Tensor> state;
  for (const auto& stage : trainer.rank_model().stages()) {
    for (const auto& [name, tensor] : stage.layers().state()) {
      state[name] = tensor.detach().clone();
    }
  }
  return state;
}

void expect_equal(const std::map<std::string, at::Tensor>& actual,
                  const std::map<std::string, at::Tensor>& expected) {
  for (const auto& [name, tensor] : expected)
    EXPECT_TRUE(at::equal(actual.at(name), tensor)) << name;
}

class Skipped : public testing::TestWithParam<mesh::Shape> {};
INSTANTIATE_TEST_SUITE_P(
    Steps, Skipped, testing::Values(mesh::Shape{}, mesh::Shape{.pipe = 2}, mesh::Shape{.data = 2}),
    [](const auto& one) { return str("Pipe", one.param.pipe, "Data", one.param.data); });

// The bad batch is that of the last replica alone.
TEST_P(Skipped, LeaveParametersBuffersAndTheRateWhereTheLossIsNotFinite) {
  const TrainerOptions options = options_of(GetParam());
  const at::Tensor x = at::rand({8, kWidth}), target = at::rand({8, kWidth});
  comm::run_ranks(options.mesh.pipe * options.mesh.data, [&](comm::Communicator& ranks) {
    Trainer trainer(options, model(), loss_of, ranks);
    trainer.step(x, target);
    const auto before = state_of_rank(trainer);
    const bool is_bad = trainer.rank_model().groups().other_samples.here + 1 == options.mesh.data;
    const StepReport bad = trainer.step(is_bad ? at::full({8, kWidth}, std::nan("")) : x, target);
    EXPECT_TRUE(bad.skipped);
    expect_equal(state_of_rank(trainer), before);
    const StepReport next = trainer.step(x, target);
    EXPECT_EQ(next.step, 3);
    EXPECT_FALSE(next.skipped);
    EXPECT_DOUBLE_EQ(next.lr, 2e-3);
  });
}

TEST_P(Skipped, KeepBuffersWhereGradientsAloneOverflow) {
  TrainerOptions options = options_of(GetParam());
  options.precision.gradient_scale.initial_scale_power = 40;
  const at::Tensor x = at::rand({8, kWidth}), target = at::rand({8, kWidth});
  comm::run_ranks(options.mesh.pipe * options.mesh.data, [&](comm::Communicator& ranks) {
    Trainer trainer(options, model(), loss_of, ranks);
    const auto before = state_of_rank(trainer);
    const StepReport report = trainer.step(x, target);
    EXPECT_TRUE(report.skipped);
    EXPECT_TRUE(std::isfinite(report.loss));
    const auto after = state_of_rank(trainer);
    for (const auto& [name, tensor] : before) {
      const bool is_buffer =
          name.find("running") != std::string::npos || name.find("tracked") != std::string::npos;
      EXPECT_EQ(at::equal(after.at(name), tensor), !is_buffer) << name;
    }
  });
}

}  // namespace
}  // namespace penstock::train
