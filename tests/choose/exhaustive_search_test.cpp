// Plans of random small requests, beside those of a search that simulates every layout.

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/core/text.h"
#include "penstock/plan/choose/in_flight.h"
#include "penstock/plan/choose/memory_bound.h"
#include "penstock/plan/choose/planner.h"
#include "penstock/plan/choose/sized_layers.h"
#include "penstock/plan/choose/stages.h"
#include "penstock/plan/choose/time_bound.h"
#include "penstock/plan/lower/programs.h"
#include "penstock/schedule/generators/generators.h"
#include "tests/support/random.h"

namespace penstock::choose {
namespace {

using testing_support::Random;

constexpr std::int64_t kAnyMemory = std::int64_t{1} << 50;

// One block of a size; those of a model are alike, or each has sizes of its own.
memory::LayerMemory random_layer(const std::string& name, Random& random) {
  const std::int64_t passed_on = 100, kept = random.between(0, 2000);
  memory::LayerMemory layer{
      .parameters = {{.name = name + ".weight", .elements = 64 * random.between(1, 20)},
                     {.name = name + ".bias", .elements = random.between(1, 30)}},
      .output = passed_on,
      .input_gradient = passed_on,
      .kept = kept,
      .keeps_input = random.chance(0.5),
      .keeps_output = random.chance(0.3),
      .half_kept = random.between(0, 500),
      .half_keeps_input = random.chance(0.5),
      .half_keeps_gradient = random.chance(0.5),
      .forward_peak = kept + passed_on,
      .plain_forward_peak = kept + passed_on,
      .backward_peak = {.first = 700, .later = 500},
      .input_peak = 300,
      .weight_peak = {.first = 400, .later = 200}};
  if (random.chance(0.3)) {
    layer.parameters[0].type = "bfloat16";
    layer.parameters[0].element_bytes = 2;
    layer.parameters[0].sum_element_bytes = random.chance(0.5) ? 4 : 2;
  }
  if (random.chance(0.1)) layer.parameters[1].is_trainable = false;
  return layer;
}

memory::LayerMemory times_samples(memory::LayerMemory layer, std::int64_t samples) {
  for (std::int64_t* const bytes :
       {&layer.output, &layer.input_gradient, &layer.kept, &layer.half_kept, &layer.forward_peak,
        &layer.plain_forward_peak, &layer.backward_peak.first, &layer.backward_peak.later,
        &layer.input_peak, &layer.weight_peak.first, &layer.weight_peak.later}) {
    *bytes *= samples;
  }
  return layer;
}

memory::LayersFile random_layers(Random& random) {
  memory::LayersFile file{.made_for = "a test", .sample_bytes = 16};
  const std::int32_t blocks = random.between(4, 9);
  std::vector<memory::LayerMemory> layers;
  const bool are_alike = random.chance(0.5);
  for (std::int32_t i = 0; i < blocks; ++i) {
    const std::string name = random.chance(0.9) ? str("h.", i) : "h";
    file.model.push_back({.name = name, .type = i % 3 == 0 ? "Other" : "Block", .parameters = 1});
    layers.push_back(are_alike && i > 0 ? layers[0] : random_layer(name, random));
    layers.back().parameters[0].name = name + ".weight";
    layers.back().parameters[1].name = name + ".bias";
  }
  if (random.chance(0.3)) {
    layers.back().parameters[0] = layers.front().parameters[0];
    layers.front().parameters[0].is_tied = layers.back().parameters[0].is_tied = true;
  }
  if (random.chance(0.2)) layers[1].input_gradient = 50;  // Less than the output before it.
  for (const std::int64_t samples : {1, 2}) {
    memory::ModelMemory memory;
    for (const memory::LayerMemory& each : layers) {
      memory.layers.push_back(times_samples(each, samples));
    }
    memory.loss = {.output = 4, .input_gradient = 100 * samples, .kept = 10};
    file.sizes.push_back({.microbatch = samples, .memory = std::move(memory)});
  }
  return file;
}

// As long as a layer's elements say.
std::vector<LayerTimes> times_of(const memory::MeasuredSize& size) {
  std::vector<LayerTimes> times;
  for (const memory::LayerMemory& layer : size.memory.layers) {
    const double n = 1e-3 * static_cast<double>(size.microbatch * layer.parameters[0].elements);
    times.push_back({.forward = n, .backward = 2.1 * n, .input = 1.2 * n, .weight = n});
  }
  return times;
}

Request random_request(const memory::LayersFile& file, Random& random) {
  Request request{.layers = file};
  config::ZeroConfig& zero = request.config.zero_optimization;
  zero.stage3_param_persistence_threshold = random.between(0, 40);
  if (random.chance(0.3)) zero.stage3_model_persistence_threshold = random.between(0, 200);
  zero.stage3_max_live_parameters = random.between(100, 5000);
  zero.reduce_bucket_size = random.between(100, 2000);
  if (random.chance(0.3)) request.config.pipeline.checkpointable_layers = "Block";
  request.choices = {.world = 4 * random.between(1, 2),
                     .samples = 8 * random.between(1, 3),
                     .layers = std::ssize(file.model),
                     .microbatches = {1, 2},
                     .shards_within_nodes = random.chance(0.5),
                     .ranks_per_node = 2,
                     .zero = {ZeroStage::Off, ZeroStage::OptimizerStates, ZeroStage::Parameters},
                     .recompute_intervals = {0, 2}};
  if (random.chance(0.5)) request.choices.offloads = {Offload::Nothing, Offload::States};
  request.memory_max = kAnyMemory;
  request.network = {.intra = {.latency = 1e-3, .bandwidth = 1e6},
                     .inter = {.latency = 1e-2, .bandwidth = 1e5},
                     .ranks_per_node = 2};
  if (random.chance(0.2)) request.network.cores_per_node = 1;
  request.times_of = times_of;
  request.memory_bandwidth = random.chance(0.5) ? 1e6 : 0.0;
  request.file_bandwidth = 1e5;
  request.top = random.between(1, 8);
  return request;
}

// A layout as it is, and what bounds say of it.
struct Told {
  Layout layout;
  double time = 0.0;
  std::int64_t bytes = 0;
  std::vector<double> times_at_least;
  std::vector<std::int64_t> bytes_at_least;
};

Told told(const Request& request, const Layout& layout, const partition::Partition& stages,
          LayerSizes& sizes, MemoryBound& bound) {
  const auto program = lower::training_program({.schedule = layout.schedule,
                                                .ranks = layout.pipe(),
                                                .stages_per_rank = layout.stages_per_rank,
                                                .microbatches = layout.microbatches});
  const SizedLayers& sized = sizes.layers_of(layout);
  const auto inputs = [&](const Layout& of) {
    return StepInputs{
        .layout = of,
        .partition = stages,
        .homes = program.facts().homes.of_stages(),
        .times = sized.times,
        .memory = sized.memory,
        .network = request.network,
        .sharing = sharing_of(request.config, layout),
        .live_page_bytes_max = live_page_bytes_max(request.config),
        .prefetch_bytes = request.config.zero_optimization.stage3_prefetch_bucket_size *
                          element_bytes(request.config),
        .memory_bandwidth = request.memory_bandwidth,
        .file_bandwidth = request.file_bandwidth};
  };
  const InFlight in = in_flight(program.schedule());
  Layout few = layout;
  few.microbatches = distinct_microbatches(layout.microbatches);
  Told told{.layout = layout, .time = step_time(inputs(layout), program)};
  told.times_at_least = {least_time(layout, stages, sized.times),
                         least_time(inputs(few), layout.microbatches, in)};
  told.bytes_at_least = {bound.least_bytes(layout), bound.least_bytes(layout, in)};
  for (const memory::PipeRank& rank : memory::pipe_memory(
           {.schedule = program,
            .partition = stages,
            .mesh = layout.mesh,
            .model = request.layers.model,
            .memory = sized.memory,
            .sharing = sharing_of(request.config, layout),
            .recomputation = {.interval = layout.recompute_interval,
                              .layers = request.config.pipeline.checkpointable_layers},
            .live_page_bytes_max = live_page_bytes_max(request.config),
            .batch_bytes = batch_bytes(request, layout)})) {
    told.bytes = std::max(told.bytes, rank.memory.peak.total());
  }
  return told;
}

std::vector<Told> told_of_all(const Request& request) {
  LayerSizes sizes(request);
  MemoryBound bound(request, sizes);
  std::vector<Told> all;
  for (const Layout& layout : all_layouts(request.choices)) {
    all.push_back(told(request, layout, sizes.balanced(layout).partition, sizes, bound));
  }
  return all;
}

// The stages of a candidate, each cut of which is simulated.
partition::Partition cut(const Request& request, const Layout& layout) {
  LayerSizes sizes(request);
  MemoryBound bound(request, sizes);
  const auto told_of = [&](const partition::Partition& stages) {
    return told(request, layout, stages, sizes, bound);
  };
  const partition::Partition& balanced = sizes.balanced(layout).partition;
  const CutStages best =
      cut_stages(balanced, [&](const auto& stages) { return told_of(stages).time; }, 64);
  return told_of(best.partition).bytes > request.memory_max ? balanced : best.partition;
}

// The candidates of a search without bounds.
std::vector<Candidate> exhaustive(const Request& request, std::vector<Told> all) {
  constexpr std::int64_t kFoundMax = 8;
  std::ranges::stable_sort(all, {}, &Told::time);
  std::vector<Candidate> candidates;
  std::int64_t found = 0;
  for (const Told& each : all) {
    if (each.bytes > request.memory_max) continue;
    if (std::ssize(candidates) == request.top || found++ == kFoundMax * request.top) break;
    Candidate candidate = price(request, AskedLayout{.layout = each.layout}).candidate;
    EXPECT_EQ(candidate.partition.bounds, cut(request, each.layout).bounds);
    const auto equal = std::ranges::find_if(
        candidates, [&](const Candidate& other) { return is_equal(other, candidate); });
    if (equal == candidates.end()) {
      candidates.push_back(std::move(candidate));
    } else {
      equal->equals.push_back(each.layout);
    }
  }
  std::ranges::stable_sort(candidates, {}, [](const Candidate& each) { return each.time.step(); });
  return candidates;
}

std::string in_words(const std::vector<Candidate>& candidates) {
  std::string text;
  for (const Candidate& each : candidates) {
    text += str(to_string(each.layout), ": ", each.time.step(), " s, ", each.peak(), " bytes, ",
                join(each.partition.bounds, " "), "\n");
    for (const Layout& equal : each.equals) text += str("  ", to_string(equal), "\n");
  }
  return text;
}

TEST(ExhaustiveSearch, FindsTheSameCandidates) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  std::int64_t layouts = 0, simulated = 0;
  for (int i = 0; i < 12; ++i) {
    SCOPED_TRACE(str("request ", i));
    const memory::LayersFile file = random_layers(random);
    Request request = random_request(file, random);
    const std::vector<Told> all = told_of_all(request);
    for (const int limit : {0, 1}) {
      // Any memory, then so much that many layouts do not fit.
      if (limit == 1) request.memory_max = random.one_of(all).bytes;
      const Plans plans = plan(request);
      EXPECT_EQ(in_words(plans.candidates), in_words(exhaustive(request, all)));
      layouts += plans.layouts;
      simulated += plans.simulated;
    }
  }
  EXPECT_LT(2 * simulated, layouts);
}

TEST(ExhaustiveSearch, BoundsAreAtMostWhatTheyBound) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int i = 0; i < 12; ++i) {
    SCOPED_TRACE(str("request ", i));
    const memory::LayersFile file = random_layers(random);
    const Request request = random_request(file, random);
    for (const Told& each : told_of_all(request)) {
      for (const double least : each.times_at_least) {
        EXPECT_LE(least, each.time * (1 + 1e-12)) << to_string(each.layout);
      }
      for (const std::int64_t least : each.bytes_at_least) {
        EXPECT_LE(least, each.bytes) << to_string(each.layout);
      }
    }
  }
}

}  // namespace
}  // namespace penstock::choose
