// Training where a send waits for its receive, and holds multiprocessors of the stand-in meanwhile:
// what runs, and what hangs, is what the proof says (plan/lower/device_proof.h).
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "penstock/core/text.h"
#include "penstock/plan/lower/programs.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/runtime/comm/connect.h"
#include "penstock/runtime/comm/nccl/nccl.h"
#include "penstock/runtime/train/device_messages.h"
#include "penstock/runtime/train/layer_sizes.h"
#include "penstock/schedule/generators/generators.h"
#include "tests/support/foreign_device.h"
#include "tests/support/foreign_streams.h"
#include "tests/support/random.h"
#include "tests/support/sweep.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/device_training.h"

namespace penstock::train {
namespace {

using testing_support::kForeign;
using testing_support::LateStreams;
using testing_support::Order;
using testing_support::Random;

struct DrawnRun {
  TrainerOptions options;
  lower::Multiprocessors multiprocessors;
  std::string words;
};

// Any schedule of one replica, with its receives as early as drawn.
std::string drawn_program(Random& random, std::int32_t pipe, std::int32_t microbatches,
                          const std::filesystem::path& file) {
  while (true) {
    const auto& all = schedule::registry();
    const schedule::Generator& generator = all[random.index_of(all.size())];
    const schedule::Sizes sizes{
        .ranks = pipe, .stages_per_rank = generator.stages_per_rank, .microbatches = microbatches};
    if (generator.purpose != schedule::Purpose::Train || !generator.objection(sizes).empty()) {
      continue;
    }
    const auto trains = lower::training_program(
        {.schedule = std::string(generator.name), .ranks = pipe, .microbatches = microbatches});
    if (trains.schedule().replicas > 1 || trains.schedule().stages > 8) continue;
    const std::int32_t lookahead = random.between(0, 6);
    const std::string text =
        schedule::to_csv(schedule::place_receives(trains.schedule(), lookahead));
    // Some place a stage twice, for two replicas, which a file of one cannot say.
    if (schedule::parse_csv(text, "drawn").replicas > 1) continue;
    std::ofstream(file) << text;
    return str(generator.name, ", lookahead ", lookahead);
  }
}

DrawnRun drawn_run(Random& random, const std::filesystem::path& file) {
  constexpr std::array kHeld = {8, 12, 16, 24, 32};
  constexpr std::array kStages = {ZeroStage::Off, ZeroStage::OptimizerStates, ZeroStage::Gradients,
                                  ZeroStage::Parameters};
  DrawnRun run;
  // Many replicas are where hangs are.
  const bool is_wide = random.chance(0.4);
  const std::int32_t pipe = is_wide ? 1 : random.between(1, 4);
  const std::int32_t data = is_wide ? random.between(4, 8) : random.between(1, 8 / pipe);
  const std::int32_t microbatches = 2 * random.between(1, 3);
  const std::string program = drawn_program(random, pipe, microbatches, file);
  run.multiprocessors.held = kHeld[random.index_of(kHeld.size())];
  run.options = {.mesh = {.pipe = pipe, .data = data},
                 .program = file.string(),
                 .microbatches = microbatches,
                 .partition = partition::Uniform{},
                 .optimizer = {.lr = 3e-3},
                 .zero = {.stage = kStages[random.index_of(kStages.size())],
                          .bucket_bytes = random.between(1, 12) * 100},
                 .device = c10::Device(kForeign)};
  run.words = str(program, ", ", microbatches, " microbatches, ", mesh::to_string(run.options.mesh),
                  ", ZeRO ", number_of(run.options.zero.stage), ", buckets of ",
                  run.options.zero.bucket_bytes, ", held ", run.multiprocessors.held);
  return run;
}

lower::DeviceProof proof_of(const DrawnRun& run, const Kind& kind) {
  std::vector<nn::LayerSpec> layers = nn::with_loss(kind.model, kind.loss);
  nn::count_parameters(layers);
  const verify::VerifiedSchedule schedule = lower::training_program(program_of(run.options));
  return device_proof(run.options, layers,
                      partition_of(layers, schedule.schedule().stages, run.options.partition),
                      schedule, run.multiprocessors);
}

// A step before forms are known, and one after; what hangs, if it does.
std::string hang_of(const DrawnRun& run, const Kind& kind, const Batch2& batch, std::uint64_t seed,
                    Order order, std::chrono::milliseconds hangs_after) {
  const LateStreams late({.seed = seed,
                          .order = order,
                          .multiprocessors = run.multiprocessors.of_device,
                          .held = run.multiprocessors.held,
                          .hangs_after = hangs_after});
  try {
    comm::run_ranks_on(
        kForeign, run.options.mesh.pipe * run.options.mesh.data,
        [&](comm::Communicator& communicator) {
          const c10::DeviceGuard here(
              c10::Device(kForeign, static_cast<c10::DeviceIndex>(communicator.rank().value)));
          Trainer trainer(run.options, kind.model, kind.loss, communicator);
          for (int step = 0; step < 2; ++step) trainer.step(batch.inputs, batch.targets);
        },
        std::chrono::seconds(60));
  } catch (const std::exception& error) {
    return late.hang().empty() ? str("error: ", error.what()) : late.hang();
  }
  return late.hang();
}

TEST(Rendezvous, WhatRunsAndWhatHangsIsWhatTheProofSays) {
  if (!testing_support::has_foreign_nccl()) GTEST_SKIP() << "torch has an NCCL of its own";
  const Kind kind = kind_named("Mlp");
  const testing_support::TemporaryFolder folder;
  Random random;
  const int runs = testing_support::runs_whole_sweeps() ? 1000 : 36;
  int hangs = 0, proved = 0, refused_that_ended = 0;
  for (int i = 0; i < runs; ++i) {
    const DrawnRun run = drawn_run(random, folder.file(str("program ", i, ".csv")));
    SCOPED_TRACE(str(run.words, ", ", random.seed_text()));
    const lower::DeviceProof proof = proof_of(run, kind);
    const bool ends = proof.objection.empty();
    const Batch2 batch = kind.batch(run.options.microbatches, kSequence);
    const auto seed = static_cast<std::uint64_t>(i);
    const std::string hang =
        hang_of(run, kind, batch, seed, Order::MessagesFirst,
                ends ? std::chrono::milliseconds(30'000) : std::chrono::milliseconds(1'500));
    if (ends) {
      EXPECT_EQ(hang, "");
    }
    if (!ends && hang.empty()) ++refused_that_ended;
    if (proof.is_of_every_order) {
      EXPECT_EQ(hang_of(run, kind, batch, seed, Order::Random, std::chrono::seconds(30)), "");
    }
    hangs += ends ? 0 : 1;
    proved += proof.is_of_every_order ? 1 : 0;
  }
  RecordProperty("runs", runs);
  RecordProperty("hangs", hangs);
  RecordProperty("proved", proved);
  RecordProperty("refused that ended", refused_that_ended);
  // The proof takes sums' number from their elements, and a stage's pages as one fetch: what hangs
  // there may end.  What it passes ends always.
  EXPECT_LE(refused_that_ended * 20, hangs);
  EXPECT_GT(proved, runs / 4);
}

TEST(Rendezvous, SumsOfSixReplicasHangWhereEachMessageHoldsAQuarter) {
  if (!testing_support::has_foreign_nccl()) GTEST_SKIP() << "torch has an NCCL of its own";
  const Kind kind = kind_named("Mlp");
  for (const ZeroStage zero : {ZeroStage::Off, ZeroStage::Gradients}) {
    DrawnRun run{.options = {.mesh = {.pipe = 1, .data = 6},
                             .schedule = "gpipe",
                             .microbatches = 2,
                             .partition = partition::Uniform{},
                             .zero = {.stage = zero, .bucket_bytes = 600},
                             .device = c10::Device(kForeign)},
                 .multiprocessors = {.held = 32}};
    EXPECT_NE(proof_of(run, kind).objection, "");
    const Batch2 batch = kind.batch(2, kSequence);
    EXPECT_NE(hang_of(run, kind, batch, 1, Order::MessagesFirst, std::chrono::seconds(2)), "");
    run.multiprocessors.held = 8;
    EXPECT_TRUE(proof_of(run, kind).is_of_every_order);
    EXPECT_EQ(hang_of(run, kind, batch, 1, Order::Random, std::chrono::seconds(30)), "");
  }
}

// With a stream for each other replica, 14 sends would hold 140 of 132.
TEST(Rendezvous, SumsOfFifteenReplicasEndSinceTheyShareStreams) {
  if (!testing_support::has_foreign_nccl()) GTEST_SKIP() << "torch has an NCCL of its own";
  const Kind kind = kind_named("Mlp");
  for (const ZeroStage zero : {ZeroStage::Off, ZeroStage::Parameters}) {
    const DrawnRun run{.options = {.mesh = {.pipe = 1, .data = 15},
                                   .schedule = "gpipe",
                                   .microbatches = 2,
                                   .partition = partition::Uniform{},
                                   .zero = {.stage = zero, .bucket_bytes = 600},
                                   .device = c10::Device(kForeign)},
                       .multiprocessors = {.held = 10}};
    EXPECT_TRUE(proof_of(run, kind).is_of_every_order);
    const Batch2 batch = kind.batch(2, kSequence);
    for (const Order order : {Order::MessagesFirst, Order::Random}) {
      EXPECT_EQ(hang_of(run, kind, batch, 1, order, std::chrono::seconds(30)), "");
    }
  }
}

TEST(Rendezvous, AMessageHoldsWhatTheProofCounts) {
  EXPECT_EQ(comm::kMultiprocessorsMax, lower::Multiprocessors{}.held);
}

}  // namespace
}  // namespace penstock::train
