// A model of one's own as a folder of weights, which other programs and modules read.
#include "penstock/run/saved_model.h"

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <filesystem>
#include <map>
#include <mutex>
#include <type_traits>
#include <utility>

#include "penstock/weights/weights.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"

namespace penstock::run {
namespace {

TEST(SavedModel, OfOnesOwnComesBackInPlainModulesFromEveryLayout) {
  const std::vector<nn::LayerSpec> layers = {nn::layer<torch::nn::Linear>("in", 4, 4),
                                             nn::layer<torch::nn::BatchNorm1d>("norm", 4),
                                             nn::layer<torch::nn::Linear>("out", 4, 2)};
  const auto loss = [](const at::Tensor& y, const at::Tensor& t) { return at::mse_loss(y, t); };
  const at::Tensor x = at::rand({8, 4}), t = at::rand({8, 2});
  for (const auto& [mesh, stage] : {std::pair(mesh::Shape{1, 1}, train::ZeroStage::Off),
                                    {{2, 1}, train::ZeroStage::Off},
                                    {{2, 2}, train::ZeroStage::Parameters}}) {
    const testing_support::TemporaryFolder folder;
    std::map<std::string, at::Tensor> trained;
    std::mutex mutex;
    comm::run_ranks(mesh.pipe * mesh.data, [&, mesh = mesh, stage = stage](auto& ranks) {
      train::Trainer trainer({.mesh = mesh, .zero = {.stage = stage}}, layers, loss, ranks);
      for (int step = 0; step < 2; ++step) {
        trainer.step(x, t);
        SavedModel(folder.path(), trainer, ranks).write();
      }
      const auto whole = trainer.rank_model().whole_parameters();
      const std::lock_guard lock(mutex);
      for (const auto& each : trainer.rank_model().stages()) {
        for (const auto& [name, tensor] : each.layers().state()) {
          trained[name] = tensor.detach().clone();
        }
      }
    });
    EXPECT_FALSE(std::filesystem::exists(folder.file("config.json")));
    torch::nn::Sequential plain({{"in", torch::nn::Linear(4, 4)},
                                 {"norm", torch::nn::BatchNorm1d(4)},
                                 {"out", torch::nn::Linear(4, 2)}});
    weights::copy_to(*plain, folder.path());
    for (const auto& each : plain->named_parameters()) {
      EXPECT_TRUE(testing_support::same_bits(each.value().detach(), trained.at(each.key())));
    }
    for (const auto& each : plain->named_buffers()) {
      EXPECT_TRUE(testing_support::same_bits(each.value(), trained.at(each.key()))) << each.key();
    }
  }
}

TEST(SavedModel, KeepsNoReferenceToAModelThatEndsBeforeIt) {
  static_assert(!std::is_constructible_v<SavedModel, std::string, Model, train::Trainer&,
                                         comm::Communicator&, execute::Progress&>);
  static_assert(!std::is_move_constructible_v<SavedModel>);
}

}  // namespace
}  // namespace penstock::run
