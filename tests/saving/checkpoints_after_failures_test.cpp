// Checkpoints as the first calls after one of the Trainer that has failed.
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <atomic>
#include <filesystem>
#include <stdexcept>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/saving/checkpoints.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace penstock::saving {
namespace {

using namespace train;
constexpr std::int64_t kWidth = 4;

// Whether a layer of this thread, a rank, throws.
thread_local bool fails = false;

at::Tensor fragile(const at::Tensor& x) {
  if (fails) throw std::runtime_error("label 12");
  return x;
}

std::vector<nn::LayerSpec> model() {
  return {nn::layer<torch::nn::Linear>("a", kWidth, kWidth),
          nn::layer<torch::nn::Linear>("b", kWidth, kWidth), nn::layer("fragile", fragile)};
}

at::Tensor loss_of(const at::Tensor& y, const at::Tensor& t) { return at::mse_loss(y, t); }

const at::Tensor& batch() {
  static const at::Tensor values = at::rand({4, kWidth});
  return values;
}

// On the last rank alone.
void fail_a_step(Trainer& trainer, const comm::Communicator& ranks) {
  fails = ranks.rank().value + 1 == ranks.world_size();
  EXPECT_THROW(trainer.step(batch(), batch()), Error);
  fails = false;
}

// Two ranks with a stage each, after a step.
template <class Body>
void with_two_ranks(CheckpointOptions checkpoints, const Body& body) {
  comm::run_ranks(2, [&](comm::Communicator& ranks) {
    execute::Progress progress;
    Trainer trainer({.mesh = {.pipe = 2}, .partition = partition::ByBounds{{0, 1, 3}}}, model(),
                    loss_of, ranks);
    Checkpoints files(trainer, ranks, progress, checkpoints, {});
    trainer.step(batch(), batch());
    body(trainer, files, ranks);
  });
}

TEST(CheckpointsAfterAFailure, AreSavedAndResumed) {
  const testing_support::TemporaryFolder folder;
  with_two_ranks({.directory = folder.path()},
                 [](Trainer& trainer, Checkpoints& files, comm::Communicator& ranks) {
                   fail_a_step(trainer, ranks);
                   files.save();
                   EXPECT_EQ(trainer.step(batch(), batch()).step, 2);
                   fail_a_step(trainer, ranks);
                   const auto resumed = files.resume();
                   ASSERT_TRUE(resumed.has_value());
                   EXPECT_EQ(resumed->step, 1);
                   EXPECT_EQ(trainer.step(batch(), batch()).step, 2);
                 });
}

TEST(CheckpointsAfterAFailure, AreFinished) {
  const testing_support::TemporaryFolder folder;
  std::atomic<int> saved = 0;
  with_two_ranks({.directory = folder.path(),
                  .is_asynchronous = true,
                  .saved = [&](const SavedStep& each) { saved += each.step == 1 ? 1 : 100; }},
                 [](Trainer& trainer, Checkpoints& files, comm::Communicator& ranks) {
                   files.save();
                   fail_a_step(trainer, ranks);
                   files.finish();
                 });
  EXPECT_EQ(saved, 2);
}

struct Breaks : torch::optim::SGD {
  using torch::optim::SGD::SGD;
  at::Tensor step(LossClosure /*closure*/) override { throw std::runtime_error("half way"); }
};

TEST(CheckpointsAfterAFailure, OfParametersThatAreHalfUpdatedAreRefused) {
  const testing_support::TemporaryFolder folder;
  comm::run_ranks(1, [&](comm::Communicator& ranks) {
    execute::Progress progress;
    Trainer trainer({}, model(), loss_of, ranks);
    Checkpoints files(trainer, ranks, progress, {.directory = folder.path()}, {});
    std::vector<at::Tensor> parameters;
    for (const auto& [name, tensor] : trainer.parameters()) parameters.push_back(tensor);
    Breaks optimizer(parameters, torch::optim::SGDOptions(0.1));
    EXPECT_THROW(trainer.step(batch(), batch(), optimizer), Error);
    const std::string said = testing_support::message_of([&] { files.save(); });
    EXPECT_NE(said.find("failed while parameters were updated"), std::string::npos) << said;
    EXPECT_NO_THROW(files.finish());
  });
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace penstock::saving
