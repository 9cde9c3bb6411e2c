// Parameters that take no gradient under ZeRO 3: spread like the others, and never updated.
#include <gtest/gtest.h>

#include <array>

#include "penstock/core/text.h"
#include "penstock/runtime/probe/allocation_meter.h"
#include "tests/train/frozen.h"
#include "tests/train/trained.h"

namespace penstock::train {
namespace {

constexpr std::int64_t kBucketBytes = 3000;  // Several a stage.

TrainerOptions options_of(const char* schedule, std::int32_t pipe, std::int32_t data,
                          ZeroStage stage) {
  return {.mesh = {.pipe = pipe, .data = data},
          .schedule = schedule,
          .microbatches = 4,
          .partition = partition::Uniform{},
          .optimizer = {.lr = 3e-3, .weight_decay = 0.1},
          .gradient_clipping = 0.5,
          .zero = {.stage = stage,
                   .bucket_bytes = kBucketBytes,
                   .limits = {.budget_bytes = 8 * kBucketBytes, .prefetch_bytes = kBucketBytes}}};
}

TEST(ZeroFrozen, TrainsToTheBitsOfWholeReplicas) {
  const Kind kind = adapters();
  for (const auto& [schedule, pipe, data] :
       {std::tuple("1f1b", 1, 2), {"1f1b", 2, 2}, {"zbv", 2, 2}, {"1f1b", 4, 2}, {"zbv", 2, 3}}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const Batch2 batch = kind.batch(8 * data, kSequence);
      const std::vector<Batch2> batches(4, batch);
      const auto train_in = [&, schedule = schedule, pipe = pipe, data = data](ZeroStage stage) {
        TrainerOptions options = options_of(schedule, pipe, data, stage);
        options.precision.type = type;
        return train(options, kind, batches);
      };
      const Trained whole = train_in(ZeroStage::Off);
      EXPECT_LT(whole.reports.back().loss, whole.reports.front().loss);
      EXPECT_TRUE(whole.parameters.contains("wte.weight"));
      for (const ZeroStage stage : {ZeroStage::Gradients, ZeroStage::Parameters}) {
        SCOPED_TRACE(str(schedule, " ", pipe, " x ", data, " ", c10::toString(type), ", stage ",
                         static_cast<int>(stage)));
        EXPECT_TRUE(same(train_in(stage), whole));
      }
    }
  }
}

// As torch's allocator counts; of trained parameters there are few.
TEST(ZeroFrozen, ARankHasItsPartOfThemBetweenSteps) {
  constexpr std::int64_t kWide = 256, kLayers = 8;
  constexpr std::int64_t kFrozen = kLayers * kWide * (kWide + 1) * 4;
  constexpr std::int64_t kSmall = 256 << 10;
  std::vector<nn::LayerSpec> model;
  for (std::int64_t i = 0; i < kLayers; ++i) model.push_back(adapted(str(i), kWide));
  for (const std::int32_t data : {2, 4}) {
    TrainerOptions options = options_of("1f1b", 1, data, ZeroStage::Parameters);
    options.zero.bucket_bytes = kFrozen / kLayers;
    options.zero.limits.budget_bytes = 3 * options.zero.bucket_bytes;
    comm::run_ranks(data, [&](comm::Communicator& communicator) {
      const probe::AllocationMeter meter;
      Trainer trainer(options, model, squares, communicator);
      EXPECT_LE(meter.now(), kFrozen / data + kSmall);
      for (int step = 0; step < 2; ++step) {
        const at::Tensor batch = at::rand({4, kWide});
        trainer.step(batch, batch);
        EXPECT_LE(meter.now(), kFrozen / data + kSmall);
        EXPECT_LE(trainer.rank_model().replicated().paging().peak_bytes,
                  options.zero.limits.budget_bytes);
        EXPECT_GT(trainer.rank_model().replicated().paging().drops, 0);
      }
      const auto whole = trainer.rank_model().whole_parameters();
      EXPECT_GE(meter.now(), kFrozen);
    });
  }
}

TEST(ZeroFrozen, AreComparedBeforeTheFirstStep) {
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    Kind kind = adapters();
    if (communicator.rank().value == 1) {
      kind.model[4] = frozen(nn::layer(
          "d", [] { return torch::nn::Linear(torch::nn::LinearOptions(16, 16).bias(false)); }));
    }
    try {
      const Trainer trainer(options_of("1f1b", 1, 2, ZeroStage::Parameters), kind.model, kind.loss,
                            communicator);
      FAIL() << "they have other parameters";
    } catch (const CommError& error) {
      const std::string& said = error.message();
      EXPECT_NE(said.find("ranks 0 and 1 do not run the same thing: rank 0 has frozen parameter "
                          "d.bias=Float[16] "),
                std::string::npos)
          << said;
      EXPECT_NE(said.find(", rank 1 has frozen parameter e.weight=Char[16, 16] "),
                std::string::npos)
          << said;
    }
  });
}

}  // namespace
}  // namespace penstock::train
