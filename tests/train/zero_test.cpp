// ZeRO against whole replicas: the same bits at every step.  What is ZeRO 3's alone is in
// zero_parameters_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <map>
#include <mutex>

#include "penstock/core/text.h"
#include "tests/support/sweep.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/choosing.h"
#include "tests/train/trained.h"

namespace penstock::train {
namespace {

using testing_support::same_bits;

constexpr std::int32_t kMicrobatches = 4;
constexpr std::int64_t kBucketBytes = 6000;  // Several buckets a stage.

constexpr std::array kStages = {ZeroStage::OptimizerStates, ZeroStage::Gradients,
                                ZeroStage::Parameters};
// Of stage 3: room for a few pages.
constexpr paging::Limits kLimits{.budget_bytes = 3 * kBucketBytes, .prefetch_bytes = kBucketBytes};

struct Layout {
  const char* schedule = "1f1b";
  std::int32_t pipe = 1;
  std::int32_t data = 2;
  at::ScalarType type = at::kFloat;
};

config::OptimizerConfig adamw() { return {.lr = 3e-3, .betas = {0.9, 0.95}, .weight_decay = 0.1}; }
config::OptimizerConfig sgd() {
  return {.type = config::OptimizerType::Sgd, .lr = 0.1, .weight_decay = 0.01, .momentum = 0.9};
}

TrainerOptions options_of(const Layout& layout, ZeroStage stage,
                          const config::OptimizerConfig& optimizer = adamw()) {
  return {
      .mesh = {.pipe = layout.pipe, .data = layout.data},
      .schedule = layout.schedule,
      .microbatches = kMicrobatches,
      .partition = partition::Uniform{},
      .optimizer = optimizer,
      .gradient_clipping = 0.5,
      .precision = {.type = layout.type, .gradient_scale = {.enabled = layout.type == at::kHalf}},
      .zero = {.stage = stage, .bucket_bytes = kBucketBytes, .limits = kLimits}};
}

std::vector<Batch2> batches_of(const Kind& kind, const Layout& layout, int steps) {
  std::vector<Batch2> batches;
  for (int i = 0; i < steps; ++i) {
    batches.push_back(kind.batch(kMicrobatches * layout.data, kSequence));
  }
  return batches;
}

// Of short types only ten in the quick tier.
int steps_of(const Layout& layout) {
  return layout.type == at::kFloat || testing_support::runs_whole_sweeps() ? 50 : 10;
}

class ZeroStages : public testing::TestWithParam<Layout> {};

TEST_P(ZeroStages, HaveTheBitsOfWholeReplicasAtEveryStep) {
  const Layout& layout = GetParam();
  const Kind kind = kind_named("Gpt");
  const auto two = batches_of(kind, layout, 2);
  std::vector<Batch2> batches;
  const int steps = steps_of(layout);
  for (int i = 0; i < steps; ++i) batches.push_back(two[static_cast<std::size_t>(i % 2)]);
  const Trained whole = train(options_of(layout, ZeroStage::Off), kind, batches);
  EXPECT_LT(whole.reports.back().loss, (steps < 50 ? 0.99 : 0.9) * whole.reports.front().loss);
  EXPECT_TRUE(std::ranges::any_of(whole.reports, [](const auto& r) { return r.grad_norm > 0.5; }));
  for (const ZeroStage stage : kStages) {
    SCOPED_TRACE(str("stage ", static_cast<int>(stage)));
    EXPECT_TRUE(same(train(options_of(layout, stage), kind, batches), whole));
  }
}

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const char* schedule : {"gpipe", "1f1b", "interleaved_1f1b", "zbv"}) {
      for (const auto& [pipe, data] : {std::pair(1, 2), {2, 2}, {1, 4}}) {
        all.push_back({schedule, pipe, data, type});
      }
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Layouts, ZeroStages, testing::ValuesIn(layouts()), [](const auto& each) {
  return penstock::str(each.param.schedule, "_", each.param.pipe, "x", each.param.data, "_",
                       c10::toString(each.param.type));
});

class ZeroKinds : public testing::TestWithParam<const char*> {};

// Tied parameters within a stage, over stages of a rank and over ranks; a parameter without a
// gradient; buffers; several types; SGD, whose momentum starts as the first gradient.  SGD in one
// layout is enough for the quick tier.
TEST_P(ZeroKinds, HaveTheBitsOfWholeReplicas) {
  const Kind kind = kind_named(GetParam());
  for (const Layout& layout : {Layout{"gpipe", 1, 3}, Layout{"zbv", 2, 2}, Layout{"1f1b", 4, 2}}) {
    const auto batches = batches_of(kind, layout, 4);
    std::vector optimizers = {adamw()};
    if (layout.pipe == 2 || testing_support::runs_whole_sweeps()) optimizers.push_back(sgd());
    for (const auto& optimizer : optimizers) {
      const Trained whole = train(options_of(layout, ZeroStage::Off, optimizer), kind, batches);
      for (const ZeroStage stage : kStages) {
        SCOPED_TRACE(str(layout.schedule, ", stage ", static_cast<int>(stage)));
        EXPECT_TRUE(same(train(options_of(layout, stage, optimizer), kind, batches), whole));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ZeroKinds,
                         testing::Values("Mlp", "Ties", "TiedGpt", "GptWithDropout", "Skips",
                                         "TrainedLoss"),
                         [](const auto& each) { return std::string(each.param); });

// Each rank's optimizer has its slices alone, and nobody has a gradient of more.
TEST(Zero, ARankUpdatesItsShardAndKeepsNoOtherGradient) {
  const Kind kind = kind_named("Gpt");
  const Layout layout{"1f1b", 2, 2};
  const auto batches = batches_of(kind, layout, 1);
  comm::run_ranks(4, [&](comm::Communicator& communicator) {
    Trainer trainer({.mesh = {.pipe = 2, .data = 2},
                     .microbatches = kMicrobatches,
                     .zero = {.stage = ZeroStage::Gradients, .bucket_bytes = kBucketBytes}},
                    kind.model, kind.loss, communicator);
    const auto mine = [](const nn::Values& values) -> nn::Values { return values[0].chunk(2)[0]; };
    trainer.step(mine(batches[0].inputs), mine(batches[0].targets));
    std::int64_t all = 0, updated = 0;
    for (const auto& [name, tensor] : trainer.parameters()) {
      all += tensor.numel();
      EXPECT_FALSE(tensor.grad().defined()) << name;
    }
    for (const parameters::Part& part : trainer.rank_model().replicated().parts().all()) {
      updated += part.tensor.numel();
      EXPECT_EQ(part.tensor.grad().numel(), part.tensor.numel());
    }
    EXPECT_NEAR(static_cast<double>(updated) / static_cast<double>(all), 0.5, 0.05);
  });
}

TEST(Zero, AccumulatesSeveralRunsAsOne) {
  const Kind kind = kind_named("Gpt");
  const Batch2 batch = kind.batch(4 * kMicrobatches, kSequence);
  const auto train_in = [&](std::size_t runs, ZeroStage stage) {
    std::map<std::string, at::Tensor> parameters;
    std::mutex mutex;
    comm::run_ranks(2, [&](comm::Communicator& communicator) {
      Trainer trainer(
          {.mesh = {.data = 2}, .microbatches = kMicrobatches, .zero = {.stage = stage}},
          kind.model, kind.loss, communicator);
      const auto replica = static_cast<std::size_t>(communicator.rank().value);
      const auto inputs = batch.inputs[0].chunk(2)[replica].chunk(static_cast<int>(runs)),
                 targets = batch.targets[0].chunk(2)[replica].chunk(static_cast<int>(runs));
      std::vector<Microbatches> batches;
      for (std::size_t run = 0; run < runs; ++run) {
        batches.push_back({split(nn::Values(inputs[run]), kMicrobatches),
                           split(nn::Values(targets[run]), kMicrobatches)});
      }
      trainer.step(batches);
      const std::lock_guard lock(mutex);
      for (const auto& [name, tensor] : trainer.parameters()) parameters[name] = tensor.detach();
    });
    return parameters;
  };
  const auto whole = train_in(2, ZeroStage::Off);
  for (const auto& [name, tensor] : train_in(2, ZeroStage::Gradients)) {
    EXPECT_TRUE(same_bits(tensor, whole.at(name))) << name;
  }
}

TEST(Zero, RanksWithAnotherStageAreToldBeforeTheFirstStep) {
  const Kind kind = kind_named("Gpt");
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    const ZeroStage stage =
        communicator.rank().value == 0 ? ZeroStage::Off : ZeroStage::OptimizerStates;
    try {
      Trainer trainer({.mesh = {.data = 2}, .zero = {.stage = stage}}, kind.model, kind.loss,
                      communicator);
      FAIL() << "they run different things";
    } catch (const CommError& error) {
      EXPECT_EQ(error.message(),
                "ranks 0 and 1 do not run the same thing: rank 0 has ZeRO stage=0, rank 1 has "
                "ZeRO stage=1");
    }
  });
}

// On replica 1 the last layer has no gradient for its last parameter, whose bucket leaves first:
// there all buckets of that stage wait for the end of its backward.  Replica 0, which has them all
// and waits for the third last of them, must get it before REDUCE_GRAD, which waits for replica 0.
TEST(Zero, NoReplicaWaitsForABucketThatAnotherSendsLater) {
  const testing_support::TemporaryFolder folder;
  std::ofstream(folder.file("program.csv"))
      << "0F0,2F0,2B0,0B0,2REDUCE_GRAD,0REDUCE_GRAD\n1F0,3F0,3B0,1B0,3REDUCE_GRAD,1REDUCE_GRAD\n";
  const Kind kind =
      choosing(7, [](const at::Tensor& input) { return Choice{.right = input.size(0) == 2}; });
  comm::run_ranks(
      4,
      [&](comm::Communicator& communicator) {
        Trainer trainer({.mesh = {.pipe = 2, .data = 2},
                         .program = folder.file("program.csv"),
                         .partition = partition::Uniform{},
                         .zero = {.stage = ZeroStage::Gradients, .bucket_bytes = 1}},
                        kind.model, kind.loss, communicator);
        const bool is_first = trainer.layout().mesh.coordinate(communicator.rank()).data == 0;
        const Batch2 batch = kind.batch(is_first ? 2 : 1, kSequence);
        trainer.step(batch.inputs, batch.targets);
      },
      std::chrono::seconds(10));
}

}  // namespace
}  // namespace penstock::train
