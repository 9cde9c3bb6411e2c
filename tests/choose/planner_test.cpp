#include "penstock/plan/choose/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/choose/in_flight.h"
#include "penstock/plan/choose/time_bound.h"
#include "penstock/plan/config/write.h"
#include "penstock/plan/lower/programs.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/simulate/simulate.h"

namespace penstock::choose {
namespace {

constexpr std::int64_t kBlocks = 8;
constexpr std::int64_t kKept = 1000;  // Bytes of a layer, microbatch and sample.

memory::LayerMemory layer(std::int64_t elements, std::int64_t samples) {
  return {.parameters = {{.name = "weight", .elements = elements}},
          .output = 100 * samples,
          .input_gradient = 100 * samples,
          .kept = kKept * samples,
          .keeps_input = true,
          .half_kept = 50 * samples,
          .forward_peak = 100 * samples,
          .plain_forward_peak = 100 * samples,
          .backward_peak = {.first = 300 * samples, .later = 300 * samples},
          .input_peak = 200 * samples,
          .weight_peak = {.first = 200 * samples, .later = 200 * samples}};
}

memory::LayersFile layers() {
  memory::LayersFile file{.made_for = "a test", .sample_bytes = 16};
  for (std::int64_t i = 0; i < kBlocks; ++i) {
    file.model.push_back({.name = str("h.", i), .type = "Block", .parameters = 256});
  }
  for (const std::int64_t samples : {1, 2}) {
    memory::ModelMemory memory;
    for (std::int64_t i = 0; i < kBlocks; ++i) memory.layers.push_back(layer(256, samples));
    memory.loss = {.output = 4, .input_gradient = 100, .kept = 10};
    file.sizes.push_back({.microbatch = samples, .memory = std::move(memory)});
  }
  return file;
}

std::vector<LayerTimes> even_times(const memory::MeasuredSize& size) {
  const auto n = static_cast<double>(size.microbatch);
  return std::vector<LayerTimes>(kBlocks,
                                 {.forward = n, .backward = 2 * n, .input = n, .weight = n});
}

struct PlannerTest : testing::Test {
  memory::LayersFile file = layers();

  Request request(std::int32_t world, std::int64_t samples, std::int64_t memory_max) {
    return {.config = {},
            .layers = file,
            .choices = {.world = world,
                        .samples = samples,
                        .layers = kBlocks,
                        .microbatches = {1, 2},
                        .zero = {ZeroStage::Off, ZeroStage::OptimizerStates, ZeroStage::Gradients,
                                 ZeroStage::Parameters},
                        .recompute_intervals = {0, 1}},
            .memory_max = memory_max,
            .network = {.intra = {.latency = 0.01, .bandwidth = 1e5}},
            .times_of = even_times,
            .top = 1000};
  }
};

const std::vector<Offload> kOffloads = {Offload::Nothing, Offload::States,
                                        Offload::StatesAndParameters};

constexpr std::int64_t kAny = std::int64_t{1} << 40;

TEST_F(PlannerTest, FindsEveryLayoutWhoseSizesFit) {
  const Request every = request(4, 16, kAny);
  const std::vector<Layout> layouts = all_layouts(every.choices);
  for (const Layout& layout : layouts) {
    EXPECT_EQ(layout.mesh.pipe * layout.mesh.data, 4);
    EXPECT_EQ(layout.microbatch * layout.microbatches * layout.mesh.data, 16);
    EXPECT_LE(layout.stages(), kBlocks);
  }
  const Plans plans = plan(every);
  std::size_t found = plans.candidates.size();
  for (const Candidate& each : plans.candidates) found += each.equals.size();
  EXPECT_EQ(found, layouts.size());
  EXPECT_EQ(plans.layouts, std::ssize(layouts));
  std::set<std::int32_t> pipes;
  for (const Candidate& each : plans.candidates) pipes.insert(each.layout.mesh.pipe);
  EXPECT_EQ(pipes, (std::set<std::int32_t>{1, 2, 4}));
}

TEST_F(PlannerTest, EqualLayoutsAreOneCandidate) {
  const Plans plans = plan(request(2, 2, kAny));
  std::size_t equals = 0;
  for (std::size_t a = 0; a < plans.candidates.size(); ++a) {
    equals += plans.candidates[a].equals.size();
    for (std::size_t b = 0; b < a; ++b) {
      EXPECT_FALSE(is_equal(plans.candidates[a], plans.candidates[b])) << a << " and " << b;
    }
  }
  EXPECT_GT(equals, 0U);  // With one microbatch the schedules differ in nothing.
}

// Two ranks have half of each layer each, and exchange 5 times forward and 7 backward.
void share(memory::LayersFile& file) {
  for (memory::MeasuredSize size : std::vector(file.sizes)) {
    size.sharers = 2;
    for (memory::LayerMemory& each : size.memory.layers) {
      each.parameters[0].elements /= 2;
      each.kept /= 2;
      each.forward_sent = 1000 * size.microbatch;
      each.forward_exchanges = 5;
      each.backward_sent = 1500 * size.microbatch;
      each.backward_exchanges = 7;
    }
    size.memory.again = size.memory.layers;
    for (memory::LayerMemory& each : size.memory.again) each.backward_exchanges = 3;
    file.sizes.push_back(std::move(size));
  }
}

TEST_F(PlannerTest, RanksThatShareLayersWaitForTheirExchanges) {
  share(file);
  Request shared = request(2, 8, kAny);
  shared.choices.tensor = {1, 2};
  shared.choices.zero = {ZeroStage::Off};
  const Plans plans = plan(shared);
  const auto find = [&](const mesh::Shape& mesh, std::int64_t recomputed) -> const Candidate& {
    return *std::ranges::find_if(plans.candidates, [&](const Candidate& each) {
      return each.layout.mesh == mesh && each.layout.microbatch == 1 &&
             each.layout.recompute_interval == recomputed;
    });
  };
  const mesh::Shape two = mesh::Shape{}.with(mesh::Axis::Tensor, 2);
  const double bytes = 2500 / 1e5, latency = 0.01;
  EXPECT_NEAR(find(two, 0).time.exchanges, 8 * kBlocks * (bytes + 12 * latency), 1e-9);
  // Computed again: a forward more, and what was gathered for it stays.
  EXPECT_NEAR(find(two, 1).time.exchanges,
              8 * kBlocks * (bytes + 1000 / 1e5 + (5 + 5 + 3) * latency), 1e-9);
  EXPECT_NEAR(find(two, 0).time.step() - find(two, 0).time.exchanges, 8 * kBlocks * 3, 1e-9);
  EXPECT_EQ(find({.data = 2}, 0).time.exchanges, 0);
  const std::int64_t whole = find({.data = 2}, 0).peak(), part = find(two, 0).peak();
  EXPECT_LT(part, whole);

  shared.choices.ranks_per_node = 1;  // They would be on two nodes.
  for (const Layout& layout : all_layouts(shared.choices)) EXPECT_EQ(layout.tensor(), 1);
}

TEST_F(PlannerTest, PairsHideExchangesOfDevices) {
  share(file);
  Request shared = request(4, 8, kAny);
  shared.choices.tensor = {2};
  shared.choices.zero = {ZeroStage::Off};
  const Plans plans = plan(shared);
  const auto find = [&](std::string_view schedule) -> const Candidate& {
    return *std::ranges::find_if(plans.candidates, [&](const Candidate& each) {
      return each.layout.schedule == schedule && each.layout.pipe() == 2 &&
             each.layout.stages_per_rank == 2 && each.layout.microbatch == 1 &&
             each.layout.recompute_interval == 0;
    });
  };
  const StepTime &pairs = find("dualpipev").time, &whole = find("interleaved_1f1b").time;
  EXPECT_LT(pairs.exchanges, 0.6 * whole.exchanges);
  EXPECT_NEAR(pairs.compute, whole.compute, 1e-9);
  EXPECT_LT(pairs.step(), whole.step());
}

TEST_F(PlannerTest, TheFirstOnesAreTheFirstOfAll) {
  Request every = request(4, 16, kAny);
  const Plans all = plan(every);
  every.top = 5;
  const Plans first = plan(every);
  ASSERT_EQ(first.candidates.size(), 5U);
  EXPECT_LT(first.simulated, all.simulated);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(first.candidates[i].time.step(), all.candidates[i].time.step()) << i;
  }
  EXPECT_TRUE(std::ranges::is_sorted(all.candidates, {},
                                     [](const Candidate& each) { return each.time.step(); }));
}

TEST_F(PlannerTest, NothingIsFasterThanItsBound) {
  for (const schedule::Generator& generator : schedule::registry()) {
    for (const std::int32_t times : {1, 2}) {
      const schedule::Sizes sizes{
          .ranks = 4, .stages_per_rank = times * generator.stages_per_rank, .microbatches = 8};
      if (generator.purpose != schedule::Purpose::Train) continue;
      if (sizes.stages_per_rank > 2 || !generator.objection(sizes).empty()) continue;
      const Layout layout{.mesh = {.pipe = 4},
                          .schedule = std::string(generator.name),
                          .stages_per_rank = sizes.stages_per_rank,
                          .microbatches = 8};
      std::vector<LayerTimes> times_of = even_times({});
      times_of.front() = {.forward = 0.3, .backward = 0.6, .input = 0.0, .weight = 0.6};
      times_of.back() = {.forward = 1.7, .backward = 3.4, .input = 2.0, .weight = 1.4};
      const partition::Partition stages =
          partition::partition(file.model, layout.stages(), partition::Uniform{});
      const auto verified = lower::training_program({.schedule = layout.schedule,
                                                     .ranks = 4,
                                                     .stages_per_rank = layout.stages_per_rank,
                                                     .microbatches = 8});
      const Network free;
      const StepInputs inputs{.layout = layout,
                              .partition = stages,
                              .homes = verified.facts().homes.of_stages(),
                              .times = times_of,
                              .memory = file.sizes.front().memory,
                              .network = free};
      const double time = step_time(inputs, verified) * (1 + 1e-12);
      EXPECT_LE(least_time(layout, stages, times_of), time) << to_string(layout);
      Layout few = layout;
      few.microbatches = distinct_microbatches(layout.microbatches);
      const StepInputs of_few{.layout = few,
                              .partition = stages,
                              .homes = verified.facts().homes.of_stages(),
                              .times = times_of,
                              .memory = file.sizes.front().memory,
                              .network = free};
      const double least = least_time(of_few, layout.microbatches, in_flight(verified.schedule()));
      EXPECT_LE(least, time) << to_string(layout);
    }
  }
}

TEST_F(PlannerTest, PartsOfAStepAddUpToTheSimulatedOne) {
  const Request every = request(4, 16, kAny);
  for (const Candidate& each : plan(every).candidates) {
    const Prepared prepared = prepare(every, each);
    const double makespan =
        simulate::simulate(prepared.schedule, prepared.costs, simulate::Detail::Totals).makespan;
    EXPECT_NEAR(each.time.step(), makespan, 1e-9 * makespan) << to_string(each.layout);
    EXPECT_GE(each.time.bubble, 0.0);
  }
}

TEST_F(PlannerTest, NoCandidateTakesMoreThanItMay) {
  const Plans all = plan(request(4, 16, kAny));
  std::int64_t least = kAny, most = 0;
  for (const Candidate& each : all.candidates) {
    least = std::min(least, each.peak());
    most = std::max(most, each.peak());
  }
  const std::int64_t limit = (least + most) / 2;
  const Plans some = plan(request(4, 16, limit));
  EXPECT_LT(some.candidates.size(), all.candidates.size());
  EXPECT_EQ(some.candidates.size() + some.too_large.size(), all.candidates.size());
  for (const Candidate& each : some.candidates) EXPECT_LE(each.peak(), limit);
  for (const TooLarge& each : some.too_large) EXPECT_GT(each.bytes, limit);
}

TEST_F(PlannerTest, LeastMemoryIsEnoughAndNoneLessIs) {
  const TooLarge least = least_memory(request(4, 16, 1), 100000);
  EXPECT_TRUE(plan(request(4, 16, least.bytes - 1)).candidates.empty());
  EXPECT_FALSE(plan(request(4, 16, least.bytes)).candidates.empty());
}

TEST_F(PlannerTest, ComputingAgainTakesLessMemoryAndMoreTime) {
  Request one = request(1, 4, kAny);
  one.choices.microbatches = {2};
  const Plans plans = plan(one);
  ASSERT_EQ(plans.candidates.size(), 2U);
  EXPECT_EQ(plans.candidates[0].layout.recompute_interval, 0);
  EXPECT_EQ(plans.candidates[1].layout.recompute_interval, 1);
  EXPECT_LT(plans.candidates[0].time.step(), plans.candidates[1].time.step());
  EXPECT_GT(plans.candidates[0].peak(), plans.candidates[1].peak());
}

TEST_F(PlannerTest, ItsConfigurationHasTheLayout) {
  Request every = request(4, 16, kAny);
  every.choices.offloads = kOffloads;
  every.file_bandwidth = 1e4;
  every.file_folder = "/scratch";
  for (const Candidate& each : plan(every).candidates) {
    config::Config config = configuration_of(every, each);
    config.model.layers = kBlocks - 2;
    const config::Config read = config::parse_config(config::to_text(config), "planned").config;
    EXPECT_EQ(read.mesh.pipe, each.layout.mesh.pipe);
    EXPECT_EQ(read.mesh.data, each.layout.mesh.data);
    EXPECT_EQ(read.schedule.name, each.layout.schedule);
    EXPECT_EQ(read.schedule.stages_per_rank, each.layout.stages_per_rank);
    EXPECT_EQ(read.zero_optimization.stage, each.layout.zero);
    EXPECT_EQ(read.pipeline.bounds, each.partition.bounds);
    EXPECT_EQ(read.batch.gradient_accumulation_steps, each.layout.microbatches);
    EXPECT_EQ(read.pipeline.activation_checkpoint_interval, each.layout.recompute_interval);
    const auto& zero = read.zero_optimization;
    const config::OffloadConfig files{config::OffloadDevice::Nvme, "/scratch"};
    const bool has_states = each.layout.offload != Offload::Nothing;
    const bool has_pieces = each.layout.offload == Offload::StatesAndParameters;
    EXPECT_EQ(zero.offload_optimizer, has_states ? files : config::OffloadConfig());
    EXPECT_EQ(zero.offload_param, has_pieces ? files : config::OffloadConfig());
  }
}

TEST_F(PlannerTest, WhatIsAskedForIsPricedLikeTheCandidate) {
  const Request every = request(4, 16, kAny);
  const Frame frame{.world = 4, .samples = 16, .layers = kBlocks};
  const AskedLayout asked = asked_layout("pipe=2,zero=1,microbatch=2,recompute=full", frame);
  const Priced priced = price(every, asked);
  const Plans plans = plan(every);
  const auto same = std::ranges::find_if(plans.candidates, [&](const Candidate& each) {
    return each.layout == asked.layout || std::ranges::count(each.equals, asked.layout) > 0;
  });
  ASSERT_NE(same, plans.candidates.end());
  EXPECT_TRUE(is_equal(priced.candidate, *same));
  ASSERT_EQ(priced.times.size(), 2U);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    // Every rank's parts make up the step, and its bytes the peak.
    EXPECT_NEAR(priced.times[rank].time.step(), priced.candidate.time.step(), 1e-9);
    EXPECT_EQ(priced.peaks[rank].total(), priced.candidate.peak_bytes[rank]);
  }
}

TEST_F(PlannerTest, EvenStagesHaveAsManyBlocks) {
  file.model.front().type = "Embedding";
  for (memory::MeasuredSize& size : file.sizes) size.memory.layers.front().parameters.clear();
  const Request every = request(4, 16, kAny);
  const Frame frame{.world = 4, .samples = 16, .layers = kBlocks};
  EXPECT_THROW(price(every, asked_layout("pipe=2,stages=even", frame)), ConfigError);  // 7 blocks.
  file.model.back().type = "Head";
  const Priced priced = price(every, asked_layout("pipe=2,stages=even", frame));
  EXPECT_EQ(priced.candidate.partition.bounds, (std::vector<std::int64_t>{0, 4, 8}));
}

TEST_F(PlannerTest, FilesTakeLessMemoryAndMoreTime) {
  Request one = request(1, 4, kAny);
  one.choices.microbatches = {2};
  one.choices.recompute_intervals = {0};
  one.choices.offloads = kOffloads;
  one.file_bandwidth = 100.0;
  one.config.zero_optimization.stage3_max_live_parameters = 256;
  one.config.zero_optimization.reduce_bucket_size = 256;
  const Plans plans = plan(one);
  ASSERT_EQ(plans.candidates.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(plans.candidates[i].layout.offload, kOffloads[i]);
  // One replica has pieces in files by ZeRO 3, and nothing else by it.
  EXPECT_EQ(plans.candidates[1].layout.zero, ZeroStage::Off);
  EXPECT_EQ(plans.candidates[2].layout.zero, ZeroStage::Parameters);
  const auto& [memory, states, both] =
      std::tie(plans.candidates[0], plans.candidates[1], plans.candidates[2]);
  EXPECT_GT(memory.peak(), states.peak());
  EXPECT_GT(memory.peak(), both.peak());
  // Two states of AdamW are read and written.
  const double state_bytes = kBlocks * 256 * 2 * 4;
  EXPECT_NEAR(states.time.update, 2 * state_bytes / 100.0, 1e-9);
  EXPECT_GT(both.time.gathers, 0.0);
  EXPECT_GT(both.time.update, states.time.update);
}

TEST_F(PlannerTest, FastFilesCostNothingBesideTheUpdateInMemory) {
  Request one = request(4, 16, kAny);
  one.memory_bandwidth = 1e4;
  one.file_bandwidth = 1e12;
  one.choices.offloads = {Offload::Nothing};
  const double without = plan(one).candidates.front().time.step();
  one.choices.offloads = {Offload::States};
  EXPECT_NEAR(plan(one).candidates.front().time.step(), without, 1e-9);
}

TEST_F(PlannerTest, RefusesOffloadThatItKnowsNoTimesOf) {
  Request offloaded = request(4, 16, kAny);
  offloaded.config.zero_optimization.offload_optimizer.device = config::OffloadDevice::Cpu;
  EXPECT_THROW(plan(offloaded), ConfigError);
}

}  // namespace
}  // namespace penstock::choose
