// What a step costs a device besides computing: copies, and scalars that the host waits for.
//
// Exact numbers, of a device that counts (foreign_device.h).  Messages go through host memory here.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/text.h"
#include "penstock/nn/decoder.h"
#include "penstock/nn/token_loss.h"
#include "penstock/schedule/generators/generators.h"
#include "tests/support/foreign_device.h"
#include "tests/support/message_of.h"
#include "tests/support/sweep.h"
#include "tests/train/model_kinds.h"

namespace penstock::train {
namespace {

using testing_support::device_counts;
using testing_support::DeviceCounts;
using testing_support::kForeign;

constexpr std::int32_t kMicrobatches = 4;

// One rank's third step: what is found out once is known by then.
struct Counted {
  DeviceCounts counts;
  std::int64_t sends = 0, receives = 0;  // Messages of the rank's plan.
  bool has_first = false, has_last = false;
};

struct Decoder {
  std::int64_t vocabulary = 40;
  std::int64_t length = 8;
  bool tied = false;
  bool has_documents = false;
};

std::vector<nn::LayerSpec> layers_of(const Decoder& decoder) {
  nn::DecoderOptions options{.vocabulary = decoder.vocabulary,
                             .layers = 6,
                             .hidden = 16,
                             .intermediate = 24,
                             .heads = 4,
                             .kv_heads = 2,
                             .head_dim = 4,
                             .tie_embeddings = decoder.tied};
  if (decoder.has_documents) options.document_end = 7;
  return nn::decoder_layers(options);
}

std::vector<Counted> count(const TrainerOptions& options, const Decoder& decoder) {
  const std::int64_t samples = options.microbatches;
  const at::Tensor text = at::randint(decoder.vocabulary, {samples, decoder.length + 1}, at::kLong);
  const at::Tensor inputs = text.slice(1, 0, -1).contiguous();
  const at::Tensor targets = text.slice(1, 1).contiguous();
  std::vector<Counted> ranks(static_cast<std::size_t>(options.mesh.pipe * options.mesh.data));
  comm::run_ranks(options.mesh.pipe * options.mesh.data, [&](comm::Communicator& communicator) {
    Trainer trainer(options, layers_of(decoder), nn::mean_token_loss, communicator);
    for (int step = 0; step < 2; ++step) trainer.step(inputs, targets);
    const DeviceCounts before = device_counts();
    trainer.step(inputs, targets);
    Counted& counted = ranks[communicator.rank().index()];
    counted.counts = device_counts() - before;
    const lower::Plan& plan = trainer.program().executor().plan();
    const auto number = [&](lower::Kind kind) {
      return std::ranges::count(plan.instructions, kind, &lower::Instruction::kind);
    };
    counted.sends = number(lower::Kind::Send);
    counted.receives = number(lower::Kind::Receive);
    counted.has_first = plan.has_first_stage;
    counted.has_last = plan.has_last_stage;
  });
  return ranks;
}

TrainerOptions options_of(std::string_view schedule, std::int32_t pipe) {
  return {.mesh = {.pipe = pipe},
          .schedule = std::string(schedule),
          .microbatches = kMicrobatches,
          .partition = partition::Uniform{},
          .optimizer = {.lr = 3e-3},
          .loss_scale = LossScale::tokens(),
          .device = c10::Device(kForeign, 0)};
}

// Copies of a rank, but for those that sum gradients over replicas.
void expect_copies(const Counted& rank, std::int64_t more_in = 0, std::int64_t more_out = 0) {
  const std::int64_t of_batch = (rank.has_first ? 1 : 0) + (rank.has_last ? 1 : 0);
  EXPECT_EQ(rank.counts.copies_in, rank.receives + of_batch + more_in);
  // The squares of gradients, and the losses.
  EXPECT_EQ(rank.counts.copies_out, rank.sends + 1 + (rank.has_last ? 1 : 0) + more_out);
  EXPECT_EQ(rank.counts.scalars, 0);
}

TEST(DeviceCounts, AStepCopiesItsMessagesItsBatchItsLossesAndItsNorm) {
  for (const schedule::Generator& generator : schedule::registry()) {
    if (generator.purpose != schedule::Purpose::Train) continue;
    for (const std::int32_t pipe : {1, 2, 4}) {
      if (pipe != 2 && generator.name != "1f1b" && !testing_support::runs_whole_sweeps()) continue;
      const schedule::Sizes sizes{.ranks = pipe,
                                  .stages_per_rank = generator.stages_per_rank,
                                  .microbatches = kMicrobatches};
      if (!generator.objection(sizes).empty()) continue;
      SCOPED_TRACE(str(generator.name, ", pipe ", pipe));
      for (const Counted& rank : count(options_of(generator.name, pipe), {})) expect_copies(rank);
    }
  }
}

// Of buckets of gradients, and of what goes back, there are as many copies in as out: one for each
// other replica.  Tied weights are one more.  A tuple is one message.
void expect_copies_of_sums(const TrainerOptions& options, const Decoder& decoder) {
  std::vector<std::int64_t> buckets;  // By rank of the first replica.
  for (const std::int32_t data : {2, 4}) {
    SCOPED_TRACE(str("data ", data, ", ZeRO ", static_cast<int>(options.zero.stage)));
    TrainerOptions replicas = options;
    replicas.mesh.data = data;
    std::vector<std::int64_t> found;
    for (const Counted& rank : count(replicas, decoder)) {
      const std::int64_t sums = rank.counts.copies_in - rank.receives - 1 - (decoder.tied ? 1 : 0);
      expect_copies(rank, rank.counts.copies_in - rank.receives - 1, sums + (decoder.tied ? 1 : 0));
      EXPECT_EQ(sums % (2 * (data - 1)), 0) << sums;
      found.push_back(sums / (2 * (data - 1)));
    }
    for (std::int32_t pipe = 0; pipe < 2; ++pipe) {
      const std::int64_t of_stage = found[static_cast<std::size_t>(pipe * data)];
      EXPECT_GT(of_stage, 0);
      buckets.push_back(of_stage);
      for (std::int32_t r = 0; r < data; ++r) {
        EXPECT_EQ(found[static_cast<std::size_t>(pipe * data + r)], of_stage);
      }
    }
  }
  EXPECT_EQ(std::vector(buckets.begin(), buckets.begin() + 2),
            std::vector(buckets.begin() + 2, buckets.end()));
}

TEST(DeviceCounts, ReplicasCopyWhatTheySum) {
  for (const ZeroStage stage :
       {ZeroStage::Off, ZeroStage::OptimizerStates, ZeroStage::Gradients, ZeroStage::Parameters}) {
    TrainerOptions options = options_of("1f1b", 2);
    options.zero = {.stage = stage, .bucket_bytes = 6000};
    const bool is_at_an_end = stage == ZeroStage::Off || stage == ZeroStage::Parameters;
    if (!is_at_an_end && !testing_support::runs_whole_sweeps()) continue;
    expect_copies_of_sums(options, {.tied = is_at_an_end, .has_documents = true});
    if (testing_support::runs_whole_sweeps()) expect_copies_of_sums(options, {});
  }
}

// 64 and 1,024 rows of a vocabulary that is no toy.
TEST(DeviceCounts, KernelsDoNotGrowWithRows) {
  std::vector<std::vector<Counted>> counted;
  for (const std::int64_t length : {16, 256}) {
    counted.push_back(count(options_of("1f1b", 2), {.vocabulary = 32'000, .length = length}));
  }
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(counted[1][rank].counts.kernels, counted[0][rank].counts.kernels);
  }
}

// Nobody waits for what the device says of targets, but for a loss that is no number.
TEST(DeviceCounts, AWrongTargetIsToldAtTheEndOfTheStep) {
  const at::Tensor text = at::randint(40, {kMicrobatches, 9}, at::kLong);
  const at::Tensor inputs = text.slice(1, 0, -1), targets = text.slice(1, 1).clone();
  const std::string told = testing_support::message_of([&] {
    comm::run_ranks(2, [&](comm::Communicator& communicator) {
      Trainer trainer(options_of("1f1b", 2), layers_of({}), nn::mean_token_loss, communicator);
      trainer.step(inputs, targets);
      const at::Tensor wrong = targets.clone();
      wrong[2][3] = 41;
      trainer.step(inputs, wrong);
    });
  });
  EXPECT_NE(told.find("step 2: a target is 41; the model's vocabulary has 40 tokens"),
            std::string::npos)
      << told;
}

}  // namespace
}  // namespace penstock::train
