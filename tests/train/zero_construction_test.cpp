// Building a model under ZeRO 3: layer by layer into pages, never whole.
#include <gtest/gtest.h>

#include <algorithm>

#include "penstock/core/text.h"
#include "penstock/runtime/probe/allocation_meter.h"
#include "tests/train/trained.h"

namespace penstock::train {
namespace {

constexpr std::int64_t kWide = 256;
constexpr std::int64_t kBlocks = 12;
constexpr std::int64_t kLinear = kWide * (kWide + 1);  // Elements: a bucket; a layer has two.

TrainerOptions spread(std::int32_t pipe, std::int32_t data, at::ScalarType type) {
  const std::int64_t element_bytes = type == at::kFloat ? 4 : 2;
  return {.mesh = {.pipe = pipe, .data = data},
          .partition = partition::Uniform{},
          .precision = {.type = type},
          .zero = {.stage = ZeroStage::Parameters, .bucket_bytes = kLinear * element_bytes}};
}

std::int64_t bytes_of(const parameters::Parts& parts) {
  std::int64_t bytes = 0;
  for (const parameters::Part& part : parts.all())
    bytes += static_cast<std::int64_t>(part.tensor.nbytes());
  return bytes;
}

// As torch's allocator counts: this rank's pieces, the parameters of a bucket that wait for the
// rest of it, and the layer that is being made, in float.
TEST(ZeroConstruction, TakesNoMoreThanThePiecesABucketAndALayer) {
  constexpr std::int64_t kSmall = 32 << 10;
  for (const auto& [pipe, data] : {std::pair(1, 2), {1, 4}, {2, 2}}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(str(pipe, " x ", data, " ", c10::toString(type)));
      const TrainerOptions options = spread(pipe, data, type);
      comm::run_ranks(pipe * data, [&](comm::Communicator& communicator) {
        const probe::AllocationMeter meter;
        const Trainer trainer(options, nn::mlp_layers(kWide, kBlocks), squares, communicator);
        const std::int64_t pieces = bytes_of(trainer.rank_model().replicated().parts());
        const std::int64_t kept = type == at::kFloat ? pieces : 3 * pieces;  // With masters.
        const std::int64_t made = options.zero.bucket_bytes + 2 * kLinear * 4;
        EXPECT_LE(meter.now(), kept + kSmall);
        EXPECT_LE(meter.peak(), std::max(kept, pieces + made) + kSmall);
      });
    }
  }
}

TEST(ZeroConstruction, StartsFromTheValuesOfWholeReplicas) {
  for (const char* model : {"Gpt", "TiedGpt", "Ties"}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      TrainerOptions options = spread(2, 2, type);
      options.schedule = "zbv";
      options.zero.bucket_bytes = 6000;
      const Trained pages = train(options, kind_named(model), {});
      options.zero.stage = ZeroStage::Off;
      EXPECT_TRUE(same(pages, train(options, kind_named(model), {}))) << model;
    }
  }
}

}  // namespace
}  // namespace penstock::train
