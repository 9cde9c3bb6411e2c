#include "penstock/plan/choose/stages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "penstock/core/text.h"
#include "penstock/plan/lower/programs.h"
#include "penstock/simulate/simulate.h"

namespace penstock::choose {
namespace {

using partition::Partition;

// Layers of such costs on a pipeline of 1F1B.
TimeOfStages pipeline(const std::vector<double>& layers, std::int32_t ranks) {
  return [=](const Partition& partition) -> std::optional<double> {
    std::vector<double> costs;
    for (std::int32_t s = 0; s < partition.stages(); ++s) {
      costs.push_back(std::accumulate(layers.begin() + partition.first_layer(StageId(s)),
                                      layers.begin() + partition.end_layer(StageId(s)), 0.0));
    }
    const auto schedule =
        lower::training_program({.schedule = "1f1b", .ranks = ranks, .microbatches = 4});
    return simulate::simulate(schedule, {.forward = costs, .input = costs, .weight = costs},
                              simulate::Detail::Totals)
        .makespan;
  };
}

Partition balanced(const std::vector<double>& layers) {
  partition::ModelMeta model;
  for (std::size_t i = 0; i < layers.size(); ++i) model.push_back({.name = str(i)});
  return partition::partition(model, 3, partition::ByCost{layers});
}

// The shortest of all cuts.
double best_of_all(const std::vector<double>& layers, const TimeOfStages& time) {
  double best = std::numeric_limits<double>::infinity();
  const auto count = static_cast<std::int64_t>(layers.size());
  for (std::int64_t a = 1; a < count - 1; ++a) {
    for (std::int64_t b = a + 1; b < count; ++b) {
      best = std::min(best, *time(Partition{{0, a, b, count}}));
    }
  }
  return best;
}

TEST(CutStages, FromABalancedCutMeetsTheBestOfAllOfSmallModels) {
  const std::vector<std::vector<double>> models = {{1, 1, 1, 1, 1, 1},
                                                   {0.3, 1, 1, 1, 1, 1, 1, 1.7},
                                                   {4, 1, 1, 1, 1, 2, 1},
                                                   {1, 2, 3, 4, 5, 6, 7}};
  for (const std::vector<double>& layers : models) {
    const TimeOfStages time = pipeline(layers, 3);
    const CutStages cut = cut_stages(balanced(layers), time, 1000);
    EXPECT_EQ(cut.time, best_of_all(layers, time)) << testing::PrintToString(cut.partition.bounds);
    EXPECT_EQ(cut.time, *time(cut.partition));
  }
}

TEST(CutStages, MovesBoundariesTogetherWhereOneAloneIsNoGain) {
  // A stage of two layers has to move between two others.
  const auto time = [](const Partition& partition) -> std::optional<double> {
    const bool is_shifted = partition.bounds == std::vector<std::int64_t>{0, 3, 5, 8};
    const bool is_start = partition.bounds == std::vector<std::int64_t>{0, 2, 4, 8};
    return is_shifted ? 1.0 : is_start ? 2.0 : 3.0;
  };
  const CutStages cut = cut_stages(Partition{{0, 2, 4, 8}}, time, 1000);
  EXPECT_EQ(cut.partition.bounds, (std::vector<std::int64_t>{0, 3, 5, 8}));
}

TEST(CutStages, LeavesNoStageEmpty) {
  const CutStages cut = cut_stages(Partition{{0, 1, 2, 3}}, pipeline({9, 1, 1}, 3), 1000);
  EXPECT_EQ(cut.partition.bounds, (std::vector<std::int64_t>{0, 1, 2, 3}));
}

TEST(CutStages, StaysWhereTheOthersDoNotFit) {
  const Partition start{{0, 1, 8}};
  const auto alone = [&](const Partition& partition) -> std::optional<double> {
    if (partition.bounds != start.bounds) return {};
    return 1.0;
  };
  EXPECT_EQ(cut_stages(start, alone, 1000).partition.bounds, start.bounds);
}

TEST(CutStages, AsksNoMoreOftenThanItMay) {
  std::int32_t asked = 0;
  const auto ever_faster = [&](const Partition&) -> std::optional<double> { return 1.0 / ++asked; };
  const CutStages cut = cut_stages(Partition{{0, 50, 100}}, ever_faster, 7);
  EXPECT_EQ(asked, 7);
  EXPECT_EQ(cut.simulated, 7);
}

}  // namespace
}  // namespace penstock::choose
