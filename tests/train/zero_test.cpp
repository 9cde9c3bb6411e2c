// ZeRO against whole replicas: the same bits at every step.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "penstock/core/text.h"
#include "tests/support/same_bits.h"
#include "tests/train/model_kinds.h"

namespace penstock::train {
namespace {

using testing_support::same_bits;

constexpr std::int32_t kMicrobatches = 4;
constexpr std::int64_t kBucketBytes = 6000;  // Several buckets a stage.

struct Layout {
  const char* schedule = "1f1b";
  std::int32_t pipe = 1;
  std::int32_t data = 2;
};

config::OptimizerConfig adamw() { return {.lr = 3e-3, .betas = {0.9, 0.95}, .weight_decay = 0.1}; }
config::OptimizerConfig sgd() {
  return {.type = config::OptimizerType::Sgd, .lr = 0.1, .weight_decay = 0.01, .momentum = 0.9};
}

struct Trained {
  std::vector<StepReport> reports;
  std::map<std::string, at::Tensor> parameters;  // Of all ranks, which must agree.
};

Trained train(const Kind& kind, const Layout& layout, ZeroStage stage,
              const std::vector<Batch2>& batches,
              const config::OptimizerConfig& optimizer = adamw()) {
  const TrainerOptions options{.mesh = {.pipe = layout.pipe, .data = layout.data},
                               .schedule = layout.schedule,
                               .microbatches = kMicrobatches,
                               .partition = partition::Uniform{},
                               .optimizer = optimizer,
                               .gradient_clipping = 0.5,
                               .zero = {.stage = stage, .bucket_bytes = kBucketBytes}};
  Trained trained;
  std::mutex mutex;
  comm::run_ranks(layout.pipe * layout.data, [&](comm::Communicator& communicator) {
    Trainer trainer(options, kind.model, kind.loss, communicator);
    const auto replica =
        static_cast<std::size_t>(trainer.mesh().coordinate(communicator.rank()).data);
    for (const Batch2& batch : batches) {
      const auto mine = [&](const nn::Values& values) -> nn::Values {
        return values[0].chunk(layout.data)[replica];
      };
      const StepReport report = trainer.step(mine(batch.inputs), mine(batch.targets));
      if (communicator.rank().value == 0) trained.reports.push_back(report);
    }
    const std::lock_guard lock(mutex);
    for (const stage::Stage& each : trainer.stages()) {
      for (const auto& [name, tensor] : each.parameters()) {
        const auto [other, is_new] = trained.parameters.emplace(name, tensor.detach().clone());
        EXPECT_TRUE(is_new || same_bits(other->second, tensor)) << name;
      }
    }
  });
  return trained;
}

std::vector<Batch2> batches_of(const Kind& kind, const Layout& layout, int steps) {
  std::vector<Batch2> batches;
  for (int i = 0; i < steps; ++i) {
    batches.push_back(kind.batch(kMicrobatches * layout.data, kSequence));
  }
  return batches;
}

void expect_same(const Trained& a, const Trained& b) {
  ASSERT_EQ(a.reports.size(), b.reports.size());
  for (std::size_t i = 0; i < a.reports.size(); ++i) {
    ASSERT_EQ(a.reports[i].loss, b.reports[i].loss) << "step " << i + 1;
    ASSERT_EQ(a.reports[i].grad_norm, b.reports[i].grad_norm) << "step " << i + 1;
  }
  ASSERT_EQ(a.parameters.size(), b.parameters.size());
  for (const auto& [name, tensor] : a.parameters) {
    EXPECT_TRUE(same_bits(tensor, b.parameters.at(name))) << name;
  }
}

class ZeroStages : public testing::TestWithParam<Layout> {};

TEST_P(ZeroStages, HaveTheBitsOfWholeReplicasAtFiftySteps) {
  const Layout& layout = GetParam();
  const Kind kind = kind_named("Gpt");
  const auto two = batches_of(kind, layout, 2);
  std::vector<Batch2> batches;
  for (std::size_t i = 0; i < 50; ++i) batches.push_back(two[i % 2]);
  const Trained whole = train(kind, layout, ZeroStage::Off, batches);
  EXPECT_LT(whole.reports.back().loss, 0.9 * whole.reports.front().loss);
  EXPECT_TRUE(std::ranges::any_of(whole.reports, [](const auto& r) { return r.grad_norm > 0.5; }));
  for (const ZeroStage stage : {ZeroStage::OptimizerStates, ZeroStage::Gradients}) {
    SCOPED_TRACE(str("stage ", static_cast<int>(stage)));
    expect_same(train(kind, layout, stage, batches), whole);
  }
}

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const char* schedule : {"gpipe", "1f1b", "interleaved_1f1b", "zbv"}) {
    for (const auto& [pipe, data] : {std::pair(1, 2), {2, 2}, {1, 4}}) {
      all.push_back({schedule, pipe, data});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Layouts, ZeroStages, testing::ValuesIn(layouts()), [](const auto& each) {
  return str(each.param.schedule, "_", each.param.pipe, "x", each.param.data);
});

class ZeroKinds : public testing::TestWithParam<const char*> {};

// Tied parameters within a stage, over stages of a rank and over ranks; a parameter without a
// gradient; buffers; several types; SGD, whose momentum starts as the first gradient.
TEST_P(ZeroKinds, HaveTheBitsOfWholeReplicas) {
  const Kind kind = kind_named(GetParam());
  for (const Layout& layout : {Layout{"gpipe", 1, 3}, Layout{"zbv", 2, 2}, Layout{"1f1b", 4, 2}}) {
    const auto batches = batches_of(kind, layout, 4);
    for (const auto& optimizer : {adamw(), sgd()}) {
      const Trained whole = train(kind, layout, ZeroStage::Off, batches, optimizer);
      for (const ZeroStage stage : {ZeroStage::OptimizerStates, ZeroStage::Gradients}) {
        SCOPED_TRACE(str(layout.schedule, ", stage ", static_cast<int>(stage)));
        expect_same(train(kind, layout, stage, batches, optimizer), whole);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ZeroKinds,
                         testing::Values("Mlp", "Ties", "TiedGpt", "GptWithDropout", "Skips"),
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
    for (const Part& part : trainer.parts().all()) {
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

TEST(Zero, InvariantSumsAreRefused) {
  const Kind kind = kind_named("Gpt");
  comm::run_ranks(1, [&](comm::Communicator& communicator) {
    EXPECT_THROW(
        Trainer({.sums = GradientSums::Invariant, .zero = {.stage = ZeroStage::OptimizerStates}},
                kind.model, kind.loss, communicator),
        ConfigError);
  });
}

}  // namespace
}  // namespace penstock::train
