#include "penstock/partition/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "tests/support/random.h"

namespace penstock::partition {
namespace {

using testing_support::Random;
using Bounds = std::vector<std::int64_t>;

// A GPT in small: an embedding, `blocks` blocks, a norm and a head.
partition::ModelMeta gpt(std::int32_t blocks) {
  partition::ModelMeta layers = {{.name = "embedding", .type = "Embedding", .parameters = 700}};
  for (std::int32_t i = 0; i < blocks; ++i) {
    layers.push_back({.name = "h." + std::to_string(i), .type = "Block", .parameters = 100});
  }
  layers.push_back({.name = "norm", .type = "LayerNorm", .parameters = 2});
  layers.push_back({.name = "head", .type = "Linear", .parameters = 600});
  return layers;
}

partition::ModelMeta plain(std::size_t layers) {
  partition::ModelMeta result;
  for (std::size_t i = 0; i < layers; ++i) {
    result.push_back({.name = std::to_string(i), .type = "Layer", .parameters = 1});
  }
  return result;
}

double largest_stage(const std::vector<double>& costs, const Bounds& bounds) {
  double largest = 0.0;
  for (std::size_t s = 0; s + 1 < bounds.size(); ++s) {
    largest = std::max(
        largest, std::accumulate(costs.begin() + bounds[s], costs.begin() + bounds[s + 1], 0.0));
  }
  return largest;
}

// The smallest largest stage over all cuts of layers [first, end) into `stages` stages.
double best_of_all_cuts(const std::vector<double>& costs, std::size_t first, std::int32_t stages) {
  const auto sum = [&](std::size_t begin, std::size_t end) {
    return std::accumulate(costs.begin() + static_cast<std::ptrdiff_t>(begin),
                           costs.begin() + static_cast<std::ptrdiff_t>(end), 0.0);
  };
  if (stages == 1) return sum(first, costs.size());
  double best = std::numeric_limits<double>::infinity();
  const auto left = static_cast<std::size_t>(stages) - 1;
  for (std::size_t end = first + 1; end + left <= costs.size(); ++end) {
    best = std::min(best, std::max(sum(first, end), best_of_all_cuts(costs, end, stages - 1)));
  }
  return best;
}

void expect_cover(const Partition& partition, std::size_t layers, std::int32_t stages) {
  ASSERT_EQ(partition.stages(), stages);
  EXPECT_EQ(partition.bounds.front(), 0);
  EXPECT_EQ(partition.bounds.back(), static_cast<std::int64_t>(layers));
  EXPECT_TRUE(std::ranges::is_sorted(partition.bounds, std::less_equal<>()));  // None empty.
}

std::string refusal(const partition::ModelMeta& layers, std::int32_t stages, const Method& method) {
  try {
    partition(layers, stages, method);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Uniform, FirstStagesTakeTheRest) {
  EXPECT_EQ(partition(plain(10), 4, Uniform{}).bounds, (Bounds{0, 3, 6, 8, 10}));
  EXPECT_EQ(partition(plain(4), 4, Uniform{}).bounds, (Bounds{0, 1, 2, 3, 4}));
  EXPECT_EQ(partition(plain(7), 1, Uniform{}).bounds, (Bounds{0, 7}));
}

TEST(Uniform, StagesDifferByAtMostOneLayer) {
  for (std::size_t layers = 1; layers <= 24; ++layers) {
    for (std::int32_t stages = 1; stages <= static_cast<std::int32_t>(layers); ++stages) {
      const Partition cut = partition(plain(layers), stages, Uniform{});
      expect_cover(cut, layers, stages);
      const std::int64_t fewest = static_cast<std::int64_t>(layers) / stages;
      for (std::int32_t s = 0; s < stages; ++s) {
        const std::int64_t held = cut.end_layer(StageId(s)) - cut.first_layer(StageId(s));
        EXPECT_TRUE(held == fewest || held == fewest + 1) << layers << " into " << stages;
      }
    }
  }
}

TEST(ByCost, LargestStageIsTheSmallestOfAllCuts) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int trial = 0; trial < 400; ++trial) {
    const std::int32_t layers = random.between(1, 10);
    const std::int32_t stages = random.between(1, layers);
    std::vector<double> costs;
    for (std::int32_t i = 0; i < layers; ++i) {
      costs.push_back(random.chance(0.3) ? 0.0 : static_cast<double>(random.between(1, 20)));
    }
    const Partition cut = partition(plain(costs.size()), stages, ByCost{costs});
    expect_cover(cut, costs.size(), stages);
    EXPECT_EQ(largest_stage(costs, cut.bounds), best_of_all_cuts(costs, 0, stages))
        << join(costs, " ") << " into " << stages;
  }
}

TEST(ByCost, FractionsAreBalancedUpToRounding) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int trial = 0; trial < 100; ++trial) {
    std::vector<double> costs;
    for (int i = 0; i < 9; ++i) costs.push_back(std::ldexp(random.between(0, 1 << 20), -10) / 3);
    const Partition cut = partition(plain(9), 4, ByCost{costs});
    expect_cover(cut, 9, 4);
    const double best = best_of_all_cuts(costs, 0, 4);
    EXPECT_LE(largest_stage(costs, cut.bounds), best * (1 + 1e-12));
  }
}

TEST(ByCost, EqualCutsEndTheirStagesAsEarlyAsTheyCan) {
  EXPECT_EQ(partition(plain(5), 3, ByCost{{1, 1, 1, 1, 1}}).bounds, (Bounds{0, 1, 3, 5}));
  EXPECT_EQ(partition(plain(5), 3, ByCost{{5, 1, 1, 1, 1}}).bounds, (Bounds{0, 1, 3, 5}));
  EXPECT_EQ(partition(plain(4), 2, ByCost{{0, 0, 0, 0}}).bounds, (Bounds{0, 1, 4}));
}

TEST(ByCost, LayersThatCostNothingStillFillStages) {
  expect_cover(partition(plain(6), 6, ByCost{{0, 0, 9, 0, 0, 0}}), 6, 6);
  EXPECT_EQ(partition(plain(5), 2, ByCost{{0, 0, 0, 5, 5}}).bounds, (Bounds{0, 4, 5}));
}

TEST(ByParameters, LargestStageIsTheSmallestOfAllCuts) {
  const partition::ModelMeta layers = gpt(12);
  std::vector<double> costs;
  for (const auto& layer : layers) costs.push_back(static_cast<double>(layer.parameters));
  for (std::int32_t stages = 1; stages <= 5; ++stages) {
    const Partition cut = partition(layers, stages, ByParameters{});
    expect_cover(cut, layers.size(), stages);
    EXPECT_EQ(largest_stage(costs, cut.bounds), best_of_all_cuts(costs, 0, stages)) << stages;
  }
}

TEST(ByType, OnlyMatchingLayersWeigh) {
  // Two blocks each; what surrounds them weighs nothing.
  EXPECT_EQ(partition(gpt(8), 4, ByType{"block"}).bounds, (Bounds{0, 3, 5, 7, 11}));
  EXPECT_EQ(partition(gpt(8), 4, ByType{"^Bl.*k$"}).bounds, (Bounds{0, 3, 5, 7, 11}));
}

TEST(ByBounds, AreTakenAsGiven) {
  EXPECT_EQ(partition(plain(6), 3, ByBounds{{0, 1, 2, 6}}).bounds, (Bounds{0, 1, 2, 6}));
}

TEST(ByBounds, MustRiseFromZeroToTheLayers) {
  for (const Bounds& bounds :
       {Bounds{}, Bounds{0, 6}, Bounds{0, 2, 2, 6}, Bounds{0, 4, 2, 6}, Bounds{1, 2, 4, 6},
        Bounds{0, 2, 4, 5}, Bounds{0, 2, 4, 7}, Bounds{0, -1, 4, 6}}) {
    EXPECT_EQ(refusal(plain(6), 3, ByBounds{bounds}),
              str("partition bounds [", join(bounds, ", "),
                  "]: 3 stages of 6 layers need 4 rising numbers from 0 to 6"));
  }
}

TEST(Partition, NeedsALayerPerStage) {
  EXPECT_EQ(refusal(plain(3), 4, Uniform{}),
            "cannot cut 3 layers into 4 stages: a stage holds at least one layer; use 1 to 3 "
            "stages, or a model with more layers");
  EXPECT_EQ(refusal(plain(3), 0, ByParameters{}),
            "cannot cut 3 layers into 0 stages: a stage holds at least one layer; use 1 to 3 "
            "stages, or a model with more layers");
  EXPECT_EQ(refusal({}, 1, Uniform{}), "cannot cut a model without layers into stages");
}

TEST(Partition, CostsMustFitTheLayers) {
  EXPECT_EQ(refusal(plain(3), 2, ByCost{{1, 2}}),
            "partition by layer cost: 2 costs given for 3 layers; give one per layer");
  EXPECT_EQ(refusal(plain(3), 2, ByCost{{1, -2, 1}}),
            "partition by layer cost: cost -2 of layer 1 must be a finite number, at least 0");
  EXPECT_EQ(refusal(plain(1), 1, ByCost{{std::numeric_limits<double>::quiet_NaN()}}),
            "partition by layer cost: cost nan of layer 0 must be a finite number, at least 0");
  EXPECT_EQ(refusal(plain(1), 1, ByCost{{std::numeric_limits<double>::infinity()}}),
            "partition by layer cost: cost inf of layer 0 must be a finite number, at least 0");
  EXPECT_EQ(refusal(plain(4), 2, ByCost{{1e308, 1e308, 1e308, 1e308}}),
            "partition by layer cost: the sum of the costs is not finite; scale them down");
}

TEST(Partition, PatternsMustParseAndMatch) {
  EXPECT_EQ(refusal(gpt(1), 2, ByType{"Conv"}),
            "partition type:Conv: matches no layer; the types are Embedding, Block, LayerNorm, "
            "Linear");
  const std::string malformed = refusal(gpt(1), 2, ByType{"Bl(ock"});
  EXPECT_TRUE(malformed.starts_with("partition type:Bl(ock: not a regular expression: "))
      << malformed;
}

TEST(Partition, TextNamesTheLayersOfEachStage) {
  const partition::ModelMeta layers = gpt(2);
  EXPECT_EQ(to_string(partition(layers, 2, ByBounds{{0, 2, 5}}), layers),
            "stage 0: layers 0..1 (embedding .. h.0), 800 parameters\n"
            "stage 1: layers 2..4 (h.1 .. head), 702 parameters\n");
}

TEST(Partition, ThousandLayersTakeNoTime) {
  std::vector<double> costs(600, 1.0);
  const Partition cut = partition(plain(600), 60, ByCost{costs});
  EXPECT_EQ(largest_stage(costs, cut.bounds), 10.0);
}

}  // namespace
}  // namespace penstock::partition
