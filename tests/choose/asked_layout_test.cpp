#include "penstock/plan/choose/asked_layout.h"

#include <gtest/gtest.h>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::choose {
namespace {

constexpr Frame kFrame = {.world = 32, .samples = 64, .layers = 34, .ranks_per_node = 8};

TEST(AskedLayout, HasEveryKey) {
  const AskedLayout asked = asked_layout(
      "pipe=4, tensor=4, data=2, zero=1, schedule=interleaved_1f1b, stages_per_rank=2, "
      "microbatch=2, recompute=selective, offload=states, stages=even",
      kFrame);
  EXPECT_EQ(asked.layout,
            (Layout{.mesh = mesh::Shape{.pipe = 4, .data = 2}.with(mesh::Axis::Tensor, 4),
                    .zero = ZeroStage::OptimizerStates,
                    .schedule = "interleaved_1f1b",
                    .stages_per_rank = 2,
                    .microbatch = 2,
                    .microbatches = 16,
                    .is_selective = true,
                    .offload = Offload::States}));
  EXPECT_EQ(asked.stages, Stages::Even);
}

TEST(AskedLayout, TheWorldLeavesReplicas) {
  const Layout layout = asked_layout("pipe=4,recompute=full", kFrame).layout;
  EXPECT_EQ(layout.mesh, (mesh::Shape{.pipe = 4, .data = 8}));
  EXPECT_EQ(layout.microbatches, 8);
  EXPECT_EQ(layout.recompute_interval, 1);
  EXPECT_EQ(layout.schedule, "1f1b");
  Frame any = kFrame;
  any.world = 0;
  EXPECT_EQ(asked_layout("pipe=4", any).layout.mesh, (mesh::Shape{.pipe = 4}));
  EXPECT_EQ(asked_layout("pipe=4,schedule=zbv", any).layout.stages_per_rank, 2);
}

TEST(AskedLayout, HasAxesThatNoRunCanHaveYet) {
  Frame frame = kFrame;
  frame.tokens = 4096;
  frame.experts = 16;
  const Layout layout =
      asked_layout("pipe=2,context=2,tensor=2,zero=1,expert=8,shard=4", frame).layout;
  EXPECT_EQ(
      layout.mesh,
      (mesh::Shape{.pipe = 2, .data = 4}.with(mesh::Axis::Context, 2).with(mesh::Axis::Tensor, 2)));
  EXPECT_EQ(layout.experts, 8);
  EXPECT_EQ(layout.sharers(), 8);
  EXPECT_EQ(layout.zero_ranks(), 4);
  EXPECT_EQ(layout.expert_sharers(), 2);  // 16 ranks of a stage, of which 8 share the experts.
  EXPECT_EQ(layout.expert_zero_ranks(), 1);
  EXPECT_EQ(only_planned(layout),
            (std::vector<std::string>{"context 2", "expert 8", "ZeRO among 4 ranks"}));
  EXPECT_EQ(only_planned(asked_layout("pipe=2,tensor=2,zero=1", frame).layout),
            std::vector<std::string>());
  // A node has eight ranks, of which two share weights.
  EXPECT_EQ(asked_layout("tensor=2,zero=3,shard=node", frame).layout.shards, 4);
  // All of them is what ZeRO does anyway.
  EXPECT_EQ(asked_layout("zero=3,shard=32", frame).layout, asked_layout("zero=3", frame).layout);
}

void expect_refused(const std::string& text, const std::string& what, const std::string& note) {
  try {
    asked_layout(text, kFrame);
    FAIL() << text;
  } catch (const ConfigError& error) {
    EXPECT_NE(error.message().find(what), std::string::npos) << error.message();
    EXPECT_NE(join(error.notes(), "; ").find(note), std::string::npos) << error.what();
  }
}

TEST(AskedLayout, RefusesWhatDoesNotFit) {
  expect_refused("pip=4", "did you mean \"pipe\"?", "keys: pipe, data, context, tensor");
  expect_refused("pipe", "pipe: a value is missing", "pipe=8");
  expect_refused("pipe=2,pipe=2", "pipe is given twice", "");
  expect_refused("pipe=two", "pipe=two: expected a whole number from 1", "");
  expect_refused("zero=4", "zero=4: expected a whole number from 0 to 3", "");
  expect_refused("pipe=4,data=4", "is 16 ranks, and --world is 32", "data=8 would do");
  expect_refused("tensor=16", "of one node, which has 8 ranks", "tensor is one of: 1, 2, 4, 8");
  expect_refused("context=2", "each rank has two of 4 chunks of a sample, which has 0 tokens", "");
  expect_refused("expert=2", "layers of this model have no experts", "");
  expect_refused("shard=4", "ZeRO 0 cuts nothing", "zero=1, 2 or 3 cut");
  expect_refused("zero=1,shard=3", "has to divide the 32 ranks", "shard is one of: 1, 2, 4, 8");
  expect_refused("microbatch=3", "do not divide the 64 samples", "train_batch_size=96");
  expect_refused("recompute=selectiv", "did you mean \"selective\"?", "none, selective, full");
  expect_refused("schedule=1f1c", "did you mean \"1f1b\"?", "schedule is one of: ");
  expect_refused("pipe=32,schedule=zbv", "64 stages, and the model has 34 layers", "");
  expect_refused("offload=parameters,zero=2", "offload=parameters needs zero=3", "");
}

}  // namespace
}  // namespace penstock::choose
