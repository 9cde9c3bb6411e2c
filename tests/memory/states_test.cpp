#include "penstock/plan/memory/states.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace penstock::memory {
namespace {

constexpr std::int64_t kElements = 64 * 4 * 100;
constexpr std::int64_t kLayers = 5;
constexpr double kPsi = kElements * kLayers;

std::vector<LayerMemory> model() {
  std::vector<LayerMemory> layers(kLayers);
  for (std::int64_t i = 0; i < kLayers; ++i) {
    layers[static_cast<std::size_t>(i)].parameters = {
        {.name = std::to_string(i) + ".weight", .elements = kElements}};
  }
  return layers;
}

// Of a rank with that stage alone.
States alone(const std::vector<LayerMemory>& layers, const Sharing& sharing) {
  Earlier nothing(sharing);
  return states_of(layers, sharing, nothing);
}

Sharing sharing_of(std::int32_t stage, std::int32_t ranks,
                   std::int64_t bucket_bytes = 2 * 4 * kElements) {
  return {.rules = {
              .stage = partition::ZeroStage(stage), .ranks = ranks, .bucket_bytes = bucket_bytes}};
}

States states(const std::vector<LayerMemory>& layers, std::int32_t stage, std::int32_t ranks) {
  return alone(layers, sharing_of(stage, ranks));
}

// Of float parameters and AdamW: 4 bytes of each parameter, 4 of its gradient, 8 of its states.
TEST(States, AreThoseOfThePaper) {
  for (const std::int32_t ranks : {2, 4}) {
    const double n = ranks;
    const auto near = [](std::int64_t bytes, double expected) {
      EXPECT_NEAR(static_cast<double>(bytes), expected, 0.01 * expected);
    };
    for (const std::int32_t stage : {0, 1, 2, 3}) {
      const States told = states(model(), stage, ranks);
      near(told.parameters, stage == 3 ? 4 * kPsi / n : 4 * kPsi);
      near(told.optimizer, stage == 0 ? 8 * kPsi : 8 * kPsi / n);
      if (stage >= 2) near(told.gradients, 4 * kPsi / n);
    }
    near(states(model(), 0, ranks).gradients, 4 * kPsi);
    near(states(model(), 1, ranks).gradients, 4 * kPsi + 4 * kPsi / n);
    near(states(model(), 3, ranks).pages, 4 * kPsi);
  }
}

TEST(States, OneReplicaSharesNothing) {
  for (const std::int32_t stage : {0, 1, 2, 3}) {
    const States told = states(model(), stage, 1);
    EXPECT_EQ(told.parameters, 4 * kElements * kLayers);
    EXPECT_EQ(told.gradients, 0) << "they come and go with the step";
    EXPECT_EQ(told.optimizer, 8 * kElements * kLayers + 4 * kLayers);
    EXPECT_TRUE(told.buckets.empty());
  }
}

// In a file they take what they would take in memory, but for what they begin at multiples of.
TEST(States, ThoseOfTheOptimizerMayBeInAFile) {
  for (const std::int32_t ranks : {1, 2}) {
    Sharing sharing = sharing_of(2, ranks);
    const States in_memory = alone(model(), sharing);
    sharing.has_states_in_file = true;
    const States told = alone(model(), sharing);
    EXPECT_EQ(told.file + told.optimizer, in_memory.optimizer);
    EXPECT_LE(told.optimizer, 4 * kLayers) << "counts of steps";
    EXPECT_EQ(told.parameters, in_memory.parameters);
    EXPECT_EQ(in_memory.file, 0);
  }
  const std::vector<LayerMemory> one = {{.parameters = {{.name = "bias", .elements = 17}}}};
  EXPECT_EQ(alone(one, {.has_states_in_file = true}).file, 2 * 128);
}

TEST(States, PiecesOfParametersMayBeInAFile) {
  for (const std::int32_t ranks : {1, 2, 4}) {
    Sharing sharing = sharing_of(3, ranks);
    sharing.has_pieces_in_file = sharing.rules.one_rank_has_pieces = true;
    const States told = alone(model(), sharing);
    EXPECT_EQ(told.parameters, 0);
    EXPECT_EQ(told.file * ranks, told.pages);
    EXPECT_NEAR(static_cast<double>(told.pages), 4 * kPsi, 0.01 * 4 * kPsi) << "padding";
    EXPECT_FALSE(told.buckets.empty()) << "gradients are summed for slices, also of one rank";
  }
}

TEST(States, BucketsHaveEveryParameterOnceTheLastFirst) {
  for (const std::int32_t stage : {0, 1, 2, 3}) {
    std::vector<std::size_t> parameters;
    for (const GradientBucket& bucket : states(model(), stage, 2).buckets) {
      parameters.insert(parameters.end(), bucket.parameters.begin(), bucket.parameters.end());
    }
    ASSERT_EQ(parameters.size(), 5u);
    EXPECT_GE(parameters.front(), 3u);
    std::ranges::sort(parameters);
    EXPECT_EQ(parameters, (std::vector<std::size_t>{0, 1, 2, 3, 4}));
  }
}

TEST(States, ATiedParameterOfTwoStagesIsThereOnce) {
  std::vector<LayerMemory> layers = model();
  for (LayerMemory& layer : layers) layer.parameters[0].is_tied = true;
  for (const std::int32_t stage : {0, 1}) {
    const Sharing sharing = sharing_of(stage, 2, 4 * kElements);
    Earlier earlier(sharing);
    const States first = states_of(layers, sharing, earlier);
    const States second = states_of(layers, sharing, earlier);
    EXPECT_GT(first.parameters, 0);
    EXPECT_EQ(second.parameters, 0);
    EXPECT_EQ(second.optimizer, 0);
    EXPECT_EQ(second.gradients, first.gradients) << "each has a gradient of its own";
  }
}

TEST(States, FrozenParametersHaveNoStates) {
  std::vector<LayerMemory> layers = model();
  for (LayerMemory& layer : layers) layer.parameters[0].is_trainable = false;
  const States told = states(layers, 2, 2);
  EXPECT_EQ(told.parameters, 4 * kElements * kLayers);
  EXPECT_EQ(told.optimizer + told.gradients, 0);
}

TEST(States, FrozenParametersAreSpreadInStage3) {
  std::vector<LayerMemory> layers = model();
  for (LayerMemory& layer : layers) {
    layer.parameters.push_back({.name = "frozen", .elements = kElements, .is_trainable = false});
    layer.buffers = 12;
  }
  for (const std::int32_t ranks : {1, 2, 4}) {
    const States told = states(layers, 3, ranks);
    EXPECT_EQ(told.parameters, 2 * 4 * kElements * kLayers / ranks + 12 * kLayers);
    EXPECT_EQ(told.pages, ranks == 1 ? 0 : 2 * 4 * kElements * kLayers);
    EXPECT_EQ(told.optimizer, states(model(), 3, ranks).optimizer);
    EXPECT_EQ(told.gradients, states(model(), 3, ranks).gradients);
  }
}

// Whole parameters, and shards of all else.
TEST(States, SmallParametersStayWholeInStage3) {
  constexpr std::int64_t kSmall = 64 * 4;
  std::vector<LayerMemory> layers = model();
  for (LayerMemory& layer : layers) {
    const std::string name = layer.parameters[0].name;
    layer.parameters.push_back({.name = name + ".bias", .elements = kSmall});
    layer.parameters.push_back({.name = name + ".frozen", .elements = 7, .is_trainable = false});
  }
  const std::int64_t small = kSmall * kLayers;
  for (const std::int32_t ranks : {2, 4}) {
    Sharing sharing = sharing_of(3, ranks);
    sharing.persistence = {.elements = kSmall};
    const States told = alone(layers, sharing);
    EXPECT_EQ(told.parameters, 4 * kElements * kLayers / ranks + 4 * small + 4 * 7 * kLayers);
    EXPECT_EQ(told.pages, 4 * kElements * kLayers);
    EXPECT_EQ(told.optimizer - 4 * std::ssize(told.master_gradients),
              8 * (kElements * kLayers + small) / ranks);
  }
}

TEST(States, AsManyStayAsTheModelMayHave) {
  Sharing sharing = sharing_of(3, 2, 1);
  sharing.persistence = {.elements = kElements, .elements_in_all = 2 * kElements};
  Earlier earlier(sharing);
  EXPECT_EQ(states_of(model(), sharing, earlier).pages, 4 * kElements * (kLayers - 2));
  std::vector<LayerMemory> later = model();
  for (LayerMemory& layer : later) layer.parameters[0].name += ".later";
  EXPECT_EQ(states_of(later, sharing, earlier).pages, 4 * kElements * kLayers);
}

}  // namespace
}  // namespace penstock::memory
