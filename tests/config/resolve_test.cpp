#include "penstock/plan/config/resolve.h"

#include <gtest/gtest.h>

#include <ostream>

#include "penstock/core/text.h"
#include "tests/support/message_of.h"

namespace penstock::config {

// For messages of gtest.
std::ostream& operator<<(std::ostream& out, const Batch& b) {
  return out << b.train_batch_size << " = " << b.micro_batch_size << " x " << b.microbatches;
}

namespace {

using testing_support::message_of;

std::string refusal(const MeshConfig& mesh, std::int64_t world_size) {
  return message_of([&] { resolve_mesh(mesh, world_size); });
}

std::string refusal(const BatchConfig& batch, const mesh::Shape& mesh) {
  return message_of([&] { resolve_batch(batch, mesh); });
}

constexpr mesh::Axis kTensor = mesh::Axis::Tensor;

// So many ranks of the pipe, and to a layer.
MeshConfig sharing(std::int64_t pipe, std::optional<std::int64_t> data, std::int32_t sharers) {
  MeshConfig mesh = config_of(mesh::Shape{}.with(kTensor, sharers));
  mesh.pipe = pipe;
  mesh.data = data;
  return mesh;
}

TEST(ResolveMesh, DataIsWhatPipeLeaves) {
  EXPECT_EQ(resolve_mesh({.pipe = 1, .data = {}}, 6), (mesh::Shape{1, 6}));
  EXPECT_EQ(resolve_mesh({.pipe = 2, .data = {}}, 6), (mesh::Shape{2, 3}));
  EXPECT_EQ(resolve_mesh({.pipe = 2, .data = 3}, 6), (mesh::Shape{2, 3}));
}

TEST(ResolveMesh, PipeDividesTheWorld) {
  EXPECT_EQ(refusal({.pipe = 4, .data = {}}, 6),
            "world size 6 is not a multiple of mesh.pipe 4; use 4 or 8 processes, or mesh.pipe 1, "
            "2, 3 or 6");
  EXPECT_EQ(refusal({.pipe = 4, .data = {}}, 1),
            "world size 1 is not a multiple of mesh.pipe 4; use 4 processes, or mesh.pipe 1");
}

TEST(ResolveMesh, ProposesThePipesNearby) {
  EXPECT_EQ(refusal({.pipe = 7, .data = {}}, 720),
            "world size 720 is not a multiple of mesh.pipe 7; use 714 or 721 processes, or "
            "mesh.pipe 2, 3, 4, 5, 6, 8, 9 or 10");
}

TEST(ResolveMesh, TheAxesMakeUpTheWorld) {
  EXPECT_EQ(refusal({.pipe = 2, .data = 2}, 6),
            "world size 6 != mesh.pipe 2 x mesh.data 2; use 4 processes, or mesh.data 3, or "
            "mesh.pipe 3");
  EXPECT_EQ(refusal({.pipe = 4, .data = 4}, 6),
            "world size 6 != mesh.pipe 4 x mesh.data 4; use 16 processes");
  EXPECT_EQ(refusal({.pipe = 1, .data = 1}, 2),
            "world size 2 != mesh.pipe 1 x mesh.data 1; use 1 process, or mesh.data 2, or "
            "mesh.pipe 2");
}

TEST(ResolveMesh, RanksThatShareLayersTakePartOfTheWorld) {
  const mesh::Shape shape = mesh::Shape{.pipe = 2, .data = 2}.with(kTensor, 2);
  EXPECT_EQ(resolve_mesh(sharing(2, {}, 2), 8), shape);
  EXPECT_EQ(resolve_mesh(sharing(2, 2, 2), 8), shape);
  EXPECT_EQ(asked_shape(sharing(2, 2, 2)).size(), 8);
  EXPECT_EQ(asked_shape(config_of(shape)), shape);
  EXPECT_EQ(refusal(sharing(2, {}, 2), 6),
            "world size 6 is not a multiple of mesh.pipe 2 x mesh.tensor 2; use 4 or 8 processes, "
            "or mesh.tensor 1 or 3, or mesh.pipe 1 or 3");
  EXPECT_EQ(refusal(sharing(2, 1, 2), 6),
            "world size 6 != mesh.pipe 2 x mesh.data 1 x mesh.tensor 2; use 4 processes, or "
            "mesh.tensor 3, or mesh.pipe 3");
}

TEST(ResolveBatch, RanksThatShareLayersTakeTheSameSamples) {
  const mesh::Shape mesh = mesh::Shape{.pipe = 4}.with(kTensor, 2);
  EXPECT_EQ(resolve_batch({16, 2, {}}, mesh), (Batch{16, 2, 8}));
  EXPECT_EQ(resolve_batch({32, {}, {}}, mesh), (Batch{32, 2, 16}));
  EXPECT_EQ(refusal({8, 2, 1}, mesh),
            "train_batch_size 8 != train_micro_batch_size_per_gpu 2 x gradient_accumulation_steps "
            "1 x data 1 (world size 8 = pipe 4 x data 1 x tensor 2)\n"
            "  note: train_batch_size 2 works\n"
            "  note: train_micro_batch_size_per_gpu 8 works\n"
            "  note: gradient_accumulation_steps 4 works\n"
            "  note: 32 processes (data 4) would work\n"
            "  note: mesh.pipe 1 (data 4) works");
  Config config;
  config.mesh = sharing(2, {}, 2);
  config.batch = {16, 2, 4};
  EXPECT_EQ(asked_shape(config), (mesh::Shape{.pipe = 2, .data = 2}.with(kTensor, 2)));
}

TEST(ResolveBatch, TwoValuesGiveTheThird) {
  const mesh::Shape mesh{.pipe = 2, .data = 2};
  const Batch batch{16, 2, 4};
  EXPECT_EQ(resolve_batch({16, 2, 4}, mesh), batch);
  EXPECT_EQ(resolve_batch({{}, 2, 4}, mesh), batch);
  EXPECT_EQ(resolve_batch({16, {}, 4}, mesh), batch);
  EXPECT_EQ(resolve_batch({16, 2, {}}, mesh), batch);
}

TEST(ResolveBatch, AMicroBatchSizeAloneIsOneMicrobatch) {
  EXPECT_EQ(resolve_batch({{}, 3, {}}, {4, 2}), (Batch{6, 3, 1}));
}

TEST(ResolveBatch, ABatchSizeAloneWithoutAPipelineIsOneMicrobatch) {
  EXPECT_EQ(resolve_batch({12, {}, {}}, {1, 2}), (Batch{12, 6, 1}));
}

TEST(ResolveBatch, ABatchSizeAloneFillsThePipeline) {
  EXPECT_EQ(resolve_batch({8, {}, {}}, {4, 1}), (Batch{8, 1, 8}));
  EXPECT_EQ(resolve_batch({64, {}, {}}, {2, 2}), (Batch{64, 4, 8}));
  EXPECT_EQ(resolve_batch({26, {}, {}}, {2, 1}), (Batch{26, 13, 2}));
}

TEST(ResolveBatch, ReplicasAloneTakeOneMicrobatchAndKnowNoPipeline) {
  EXPECT_EQ(resolve_batch({12, {}, {}}, 2), (Batch{12, 6, 1}));
  EXPECT_EQ(resolve_batch({{}, 3, 4}, 2), (Batch{24, 3, 4}));
  EXPECT_EQ(message_of([] { resolve_batch({12, 4, {}}, 2); }),
            "train_batch_size 12 is not a multiple of train_micro_batch_size_per_gpu 4 x data 2\n"
            "  note: train_batch_size 8 or 16 works\n"
            "  note: train_micro_batch_size_per_gpu 2 or 3 works");
}

TEST(ResolveBatch, TheProductAlwaysHolds) {
  for (std::int32_t pipe = 1; pipe <= 4; ++pipe) {
    for (std::int32_t data = 1; data <= 4; ++data) {
      for (std::int64_t replica = 1; replica <= 32; ++replica) {
        const Batch b = resolve_batch({replica * data, {}, {}}, {pipe, data});
        EXPECT_EQ(b.train_batch_size, replica * data);
        EXPECT_EQ(b.micro_batch_size * b.microbatches * data, b.train_batch_size) << b;
        EXPECT_LE(b.microbatches, 4 * pipe);
      }
    }
  }
}

TEST(ResolveBatch, AContradictionProposesEverySingleChange) {
  EXPECT_EQ(refusal({8, 2, 1}, {4, 1}),
            "train_batch_size 8 != train_micro_batch_size_per_gpu 2 x gradient_accumulation_steps "
            "1 x data 1 (world size 4 = pipe 4 x data 1)\n"
            "  note: train_batch_size 2 works\n"
            "  note: train_micro_batch_size_per_gpu 8 works\n"
            "  note: gradient_accumulation_steps 4 works\n"
            "  note: 16 processes (data 4) would work\n"
            "  note: mesh.pipe 1 (data 4) works");
  EXPECT_EQ(refusal({8, 3, 1}, {1, 1}),
            "train_batch_size 8 != train_micro_batch_size_per_gpu 3 x gradient_accumulation_steps "
            "1 x data 1 (world size 1 = pipe 1 x data 1)\n"
            "  note: train_batch_size 3 works\n"
            "  note: train_micro_batch_size_per_gpu 8 works");
}

TEST(ResolveBatch, AnUnevenBatchProposesItsNeighbours) {
  EXPECT_EQ(refusal({10, 4, {}}, {1, 2}),
            "train_batch_size 10 is not a multiple of train_micro_batch_size_per_gpu 4 x data 2 "
            "(world size 2 = pipe 1 x data 2)\n"
            "  note: train_batch_size 8 or 16 works\n"
            "  note: train_micro_batch_size_per_gpu 1 or 5 works");
  EXPECT_EQ(refusal({10, {}, {}}, {1, 4}),
            "train_batch_size 10 is not a multiple of data 4 (world size 4 = pipe 1 x data 4)\n"
            "  note: train_batch_size 8 or 12 works\n"
            "  note: 2 processes (data 2) would work\n"
            "  note: mesh.pipe 2 (data 2) works\n"
            "  note: 5 processes (data 5) would work");
  EXPECT_EQ(refusal({3, {}, 4}, {2, 1}),
            "train_batch_size 3 is not a multiple of gradient_accumulation_steps 4 x data 1 "
            "(world size 2 = pipe 2 x data 1)\n"
            "  note: train_batch_size 4 works\n"
            "  note: gradient_accumulation_steps 1 or 3 works");
}

// What a note proposes must indeed be accepted.
TEST(ResolveBatch, ProposalsWork) {
  EXPECT_EQ(refusal({2, 2, 1}, {4, 1}), "no error");
  EXPECT_EQ(refusal({8, 8, 1}, {4, 1}), "no error");
  EXPECT_EQ(refusal({8, 2, 4}, {4, 1}), "no error");
  EXPECT_EQ(refusal({8, 2, 1}, {4, 4}), "no error");
  EXPECT_EQ(refusal({8, 2, 1}, {1, 4}), "no error");
  EXPECT_EQ(refusal({10, 5, {}}, {1, 2}), "no error");
  EXPECT_EQ(refusal({10, {}, {}}, {2, 2}), "no error");
}

TEST(ResolveBatch, NeedsABatchSize) {
  const std::string message =
      "the config gives no batch size: set train_batch_size (samples per optimizer step), or "
      "train_micro_batch_size_per_gpu and gradient_accumulation_steps";
  EXPECT_EQ(refusal({}, {1, 1}), message);
  EXPECT_EQ(refusal({{}, {}, 4}, {1, 1}), message);
}

}  // namespace
}  // namespace penstock::config
