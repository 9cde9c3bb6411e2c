#include "penstock/memory/rank_memory.h"

#include <gtest/gtest.h>

#include "penstock/plan/lower/programs.h"

namespace penstock::memory {
namespace {

constexpr std::int32_t kMicrobatches = 8;

// A stage that keeps 100 of a microbatch, its output of 10 included.
StageMemory stage() {
  return StageMemory({.layers = {{.output = 10,
                                  .input_gradient = 10,
                                  .kept = 90,
                                  .half_kept = 40,
                                  .forward_peak = 100,
                                  .backward_peak = {.first = 30, .later = 30},
                                  .input_peak = 20}},
                      .segments = {{0, 1, false}}});
}

RankMemory told(const char* schedule, std::int32_t ranks, std::int32_t rank,
                const Standing& standing = {}) {
  const auto verified = lower::training_program(
      {.schedule = schedule, .ranks = ranks, .microbatches = kMicrobatches});
  const std::int32_t stages = verified.schedule().stages;
  std::vector<std::int64_t> bounds;
  for (std::int32_t s = 0; s <= stages; ++s) bounds.push_back(s);
  const lower::Plan plan = lower::lower(verified, partition::Partition{bounds},
                                        mesh::make_mesh(ranks, {.pipe = ranks}), Rank{rank});
  return rank_memory(plan, std::vector<StageMemory>(plan.chunks.size(), stage()), standing);
}

TEST(RankMemory, HoldsAsManyActivationsAsTheScheduleHas) {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zbv"}) {
    const auto verified =
        lower::training_program({.schedule = schedule, .ranks = 4, .microbatches = kMicrobatches});
    for (std::int32_t rank = 0; rank < 4; ++rank) {
      const RankMemory memory = told(schedule, 4, rank);
      const std::int32_t peak = verified.facts().peak_activations[static_cast<std::size_t>(rank)];
      EXPECT_EQ(memory.live_activations, peak) << schedule << " rank " << rank;
      EXPECT_LE(memory.peak.activations, 100 * peak + 30) << schedule << " rank " << rank;
    }
  }
  EXPECT_EQ(told("gpipe", 2, 0).peak.activations, 8 * 100 + 30);
  EXPECT_EQ(told("1f1b", 2, 0).peak.activations, 2 * 100 + 30);
}

TEST(RankMemory, ThePeakIsAtTheFirstBackwardOfGpipe) { EXPECT_EQ(told("gpipe", 2, 1).at, "1B0"); }

TEST(RankMemory, WhatStandsIsInThePeak) {
  const Standing standing{.always = {.parameters = 1000, .gradients = 200, .optimizer = 30},
                          .in_step = {.buckets = 50, .batch = 4}};
  const RankMemory memory = told("1f1b", 2, 0, standing);
  EXPECT_EQ(memory.peak.parameters, 1000);
  EXPECT_EQ(memory.peak.total(), 1284 + memory.peak.activations + memory.peak.messages);
  EXPECT_GT(memory.between_steps.messages, 0) << "buffers of receives stay";
  EXPECT_EQ(memory.between_steps.total(), 1230 + memory.between_steps.messages);
}

}  // namespace
}  // namespace penstock::memory
