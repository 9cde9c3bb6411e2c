// A batch norm in eval() that was itself the layer, or was put in eval() later, trained again after
// the first validation: evaluation put it, and what it wraps, in train().  Losses went another way
// from there on, without a word: 541.94, 436.51, 436.42 instead of 541.94, 540.74, 539.54.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "penstock/runtime/stage/stage.h"

namespace penstock::stage {
namespace {

constexpr std::int64_t kWidth = 6;

class FrozenModules : public testing::Test {
 protected:
  // A norm that is a layer, and one inside of another module.
  std::vector<nn::LayerSpec> model() {
    const auto norm = [this] {
      norms.emplace_back(kWidth);
      norms.back()->eval();
      return norms.back();
    };
    return {nn::layer<torch::nn::Linear>("in", kWidth, kWidth), nn::layer("norm", norm),
            nn::layer("more", [norm] {
              return torch::nn::Sequential(torch::nn::Linear(kWidth, kWidth), norm());
            })};
  }
  void put_in_training(bool trains) {
    for (auto& norm : norms) norm->train(trains);
  }
  void evaluate() { stage.forward(Microbatch(0), batch, /*keep_graph=*/false); }
  // Whether a training forward moves both norms' means, or neither.
  void expect_a_forward_moves_means(bool moves) {
    stage.forward(Microbatch(0), batch, /*keep_graph=*/true);
    stage.drop_activations();
    for (const auto& norm : norms) {
      EXPECT_EQ(at::equal(norm->running_mean, at::zeros({kWidth})), !moves);
      EXPECT_EQ(norm->is_training(), moves);
    }
  }

  std::vector<torch::nn::BatchNorm1d> norms;
  at::Tensor batch = at::arange(8 * kWidth, at::kFloat).view({8, kWidth}).sin();
  Stage stage{StageId(0), model(), 0, 3, /*seed=*/1, std::make_shared<ActivationCount>()};
};

TEST_F(FrozenModules, StayFrozenAfterAValidation) {
  expect_a_forward_moves_means(false);
  evaluate();
  expect_a_forward_moves_means(false);
}

TEST_F(FrozenModules, ThatAreFrozenOrThawedByHandBetweenAValidationAndAStepStaySo) {
  put_in_training(true);
  evaluate();
  put_in_training(false);
  expect_a_forward_moves_means(false);
  evaluate();
  put_in_training(true);
  expect_a_forward_moves_means(true);
}

}  // namespace
}  // namespace penstock::stage
