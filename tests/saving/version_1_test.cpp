// A checkpoint of version 1 of the format is read by ranks of any layout, and saved again as it
// was.
#include <gtest/gtest.h>

#include "penstock/comm/communicator.h"
#include "penstock/core/text.h"
#include "penstock/files/checkpoint/difference.h"
#include "penstock/runtime/nn/mlp.h"
#include "penstock/saving/checkpoints.h"
#include "tests/support/temporary_folder.h"

namespace penstock::saving {
namespace {

using testing_support::TemporaryFolder;
using train::Trainer;
using train::ZeroStage;

// A checkpoint that penstock 0.1 wrote (tests/checkpoint/version_1_test.cpp), read by ranks of
// other layouts and saved again.
TEST(CheckpointVersions, OneIsReadInAnyLayout) {
  const std::string old = str(PENSTOCK_SOURCE_DIR, "/tests/checkpoint/version_1");
  for (const mesh::Shape& mesh : {mesh::Shape{.pipe = 2}, mesh::Shape{.data = 2}}) {
    const TemporaryFolder folder;
    comm::run_ranks(2, [&](comm::Communicator& communicator) {
      Trainer trainer(
          {.mesh = mesh, .microbatches = 2, .zero = {.stage = ZeroStage::OptimizerStates}},
          nn::mlp_layers(10, 2),
          [](const at::Tensor& y, const at::Tensor& t) { return (y - t).sum(); }, communicator);
      execute::Progress progress;
      Checkpoints reads(trainer, communicator, progress, {.directory = old}, {});
      EXPECT_EQ(reads.resume()->client_state, (checkpoint::Texts{{"place", "the mill"}}));
      Checkpoints writes(trainer, communicator, progress, {.directory = folder.path()}, {});
      writes.save();
    });
    checkpoint::SavedCheckpoint a(old + "/step-00000002"), b(folder.file("step-00000002"));
    EXPECT_TRUE(checkpoint::difference(a, b).different.empty());
    EXPECT_EQ(checkpoint::difference(a, b).equal, a.manifest().tensors.size());
  }
}

}  // namespace
}  // namespace penstock::saving
