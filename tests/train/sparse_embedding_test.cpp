// An embedding with sparse gradients trains as one with dense ones, whoever sums them.
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>

#include "penstock/core/text.h"
#include "tests/support/same_bits.h"
#include "tests/train/model_kinds.h"

namespace penstock::train {
namespace {

at::Tensor trained(bool is_sparse, TrainerOptions options) {
  const std::vector<nn::LayerSpec> model = {
      nn::layer<torch::nn::Embedding>("in",
                                      torch::nn::EmbeddingOptions(16, kWidth).sparse(is_sparse)),
      linear("out")};
  const at::Tensor tokens = at::arange(8).remainder(5), targets = at::ones({8, kWidth});
  options.optimizer = {.type = config::OptimizerType::Sgd, .lr = 0.1, .momentum = 0.9};
  options.microbatches = 2;
  at::Tensor weight;
  comm::run_ranks(options.mesh.data, [&](comm::Communicator& communicator) {
    Trainer trainer(options, model, squares, communicator);
    for (int step = 0; step < 3; ++step) trainer.step(tokens, targets);
    const at::Tensor whole = trainer.get("in.weight");
    if (communicator.rank().value == 0) weight = whole;
  });
  return weight;
}

TEST(SparseEmbedding, TrainsAsADenseOne) {
  for (const std::int32_t data : {1, 2}) {
    for (const ZeroStage stage : {ZeroStage::Off, ZeroStage::Gradients}) {
      for (const GradientSums sums : {GradientSums::AsTheyCome, GradientSums::Invariant}) {
        if (stage != ZeroStage::Off && sums == GradientSums::Invariant) continue;
        SCOPED_TRACE(str("data ", data, ", ZeRO ", config::number_of(stage)));
        const TrainerOptions options{
            .mesh = {.data = data}, .sums = sums, .zero = {.stage = stage}};
        EXPECT_TRUE(testing_support::same_bits(trained(true, options), trained(false, options)));
      }
    }
  }
}

}  // namespace
}  // namespace penstock::train
