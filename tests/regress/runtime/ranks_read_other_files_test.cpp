// Ranks whose files of one name have other contents, as two hosts may have them: other checkpoints,
// and other weights to begin with.  They trained on a mix of both, to exit code 0.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <atomic>

#include "penstock/comm/communicator.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/train/handshake.h"
#include "penstock/saving/checkpoints.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/choosing.h"
#include "tests/train/model_kinds.h"

namespace penstock::train {
namespace {

using saving::Checkpoints;
using testing_support::message_of;
using testing_support::TemporaryFolder;

TrainerOptions options(ZeroStage stage, std::int64_t seed = 1) {
  return {.mesh = {.data = 2},
          .microbatches = 2,
          .partition = partition::Uniform{},
          .zero = {.stage = stage},
          .seed = seed};
}

TEST(RanksReadOtherFiles, CheckpointsOfOneName) {
  const Kind kind = kind_named("Mlp");
  const TemporaryFolder folder;
  std::atomic<int> told = 0;
  for (const std::int64_t seed : {1, 2}) {
    comm::run_ranks(2, [&](comm::Communicator& communicator) {
      Trainer trainer(options(ZeroStage::Off, seed), kind.model, kind.loss, communicator);
      execute::Progress progress;
      const std::string directory = folder.file(str("of host ", seed));
      Checkpoints(trainer, communicator, progress, {.directory = directory}, {}).save();
    });
  }
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    Trainer trainer(options(ZeroStage::Off, 3), kind.model, kind.loss, communicator);
    execute::Progress progress;
    Checkpoints checkpoints(trainer, communicator, progress, {.directory = folder.path()}, {});
    const auto mine = str("of host ", 1 + communicator.rank().value, "/step-00000000");
    const at::Tensor weight = trainer.rank_model().stages()[0].parameters()[0].tensor;
    const at::Tensor before = weight.detach().clone();
    const std::string message = message_of([&] { checkpoints.resume_from(folder.file(mine)); });
    EXPECT_NE(message.find("ranks 0 and 1 do not load the same checkpoint: rank 0 has checkpoint="
                           "step 0, manifest "),
              std::string::npos)
        << message;
    EXPECT_TRUE(weight.equal(before));
    ++told;
  });
  EXPECT_EQ(told, 2);
}

// One element of one tensor, far from the middle: whatever sample is taken of it.
std::vector<nn::LayerSpec> with_other_weights(std::vector<nn::LayerSpec> model, bool is_other) {
  nn::LayerSpec& layer = model[3];
  layer.make = [make = layer.make, is_other] {
    auto made = make();
    const torch::NoGradGuard no_grad;
    if (is_other) made->parameters()[0].view(-1)[0] += 1e-6F;
    return made;
  };
  return model;
}

TEST(RanksReadOtherFiles, WeightsToBeginWith) {
  const Kind kind = kind_named("Mlp");
  for (const ZeroStage stage :
       {ZeroStage::Off, ZeroStage::OptimizerStates, ZeroStage::Gradients, ZeroStage::Parameters}) {
    SCOPED_TRACE(static_cast<int>(stage));
    std::atomic<int> told = 0;
    comm::run_ranks(2, [&](comm::Communicator& communicator) {
      const std::string message = message_of([&] {
        Trainer trainer(options(stage),
                        with_other_weights(kind.model, communicator.rank().value == 1), kind.loss,
                        communicator);
      });
      EXPECT_NE(message.find("ranks 0 and 1 do not run the same thing: rank 0 has parameter 3."),
                std::string::npos)
          << message;
      ++told;
    });
    EXPECT_EQ(told, 2);
  }
}

}  // namespace
}  // namespace penstock::train
