// What layers take, from the costs of stages, or of themselves.
#include "penstock/plan/choose/layer_times.h"

#include <gtest/gtest.h>

#include "penstock/core/error.h"

namespace penstock::choose {
namespace {

using Numbers = std::vector<double>;

const std::vector<double> kOperations = {10, 30, 60};

simulate::Costs costs_of(const Numbers& forward, const Numbers& backward) {
  return {.forward = forward, .input = 1.0, .weight = 2.0, .backward = verify::PerStage(backward)};
}

TEST(LayerTimes, AStagesCostIsSharedOutByOperations) {
  const auto times =
      times_of(costs_of({4, 8}, {10, 20}), {.bounds = {0, 2, 3}}, kOperations, 2.0, 2.0);
  EXPECT_DOUBLE_EQ(times[0].forward, 0.001);
  EXPECT_DOUBLE_EQ(times[1].forward, 0.003);
  EXPECT_DOUBLE_EQ(times[2].forward, 0.008);
  EXPECT_DOUBLE_EQ(times[0].backward, 0.0025);
}

// Their operations do not matter: a layer that is slow for what it computes stays so.
TEST(LayerTimes, CostsOfLayersAreTheirOwn) {
  const simulate::Costs costs = costs_of({7, 5, 3}, {1, 2, 4});
  EXPECT_TRUE(are_by_layer(costs, 3));
  EXPECT_FALSE(are_by_layer(costs, 4));
  const auto times = times_of(costs, partition::one_layer_each(3), kOperations, 2.0, 4.0);
  EXPECT_DOUBLE_EQ(times[0].forward, 0.014);
  EXPECT_DOUBLE_EQ(times[1].forward, 0.010);
  EXPECT_DOUBLE_EQ(times[2].forward, 0.006);
  EXPECT_DOUBLE_EQ(times[2].backward, 0.008);
  EXPECT_DOUBLE_EQ(times[0].input, 0.002);
  EXPECT_DOUBLE_EQ(times[0].weight, 0.004);
}

// A kernel takes its operations at the device's rate, and at least what any takes.
TEST(LayerTimes, LayersWhoseKernelsAreKnownArePricedByThem) {
  using devices::KernelKind;
  const devices::DeviceModel model{.short_peak = 1e6,
                                   .product_share = 0.5,
                                   .memory_bytes_per_s = 1e3,
                                   .memory_share = 0.5,
                                   .kernel_s = 1.0,
                                   .launch_s = 0.25};
  const memory::LayerMemory known{
      .forward_kernels = {{{KernelKind::ShortProduct, 2'000'000}, 3}, {{KernelKind::Other, 1}, 2}},
      .backward_kernels = {{{KernelKind::Other, 5'000}, 1}}};
  memory::MeasuredSize size{.microbatch = 1, .memory = {.layers = {known}}};
  Device device{.flops = 7.0, .bandwidth = 7.0, .kernels = model};
  const std::vector<partition::LayerMeta> layers = {{.name = "h.0", .type = "Linear"}};
  const LayerTimes times = times_on(device, {}, layers, size).front();
  EXPECT_DOUBLE_EQ(times.forward, 3 * 4.0 + 2 * 1.0);
  EXPECT_DOUBLE_EQ(times.backward, 10.0);
  // A host that launches more slowly than the device runs.
  device.kernels->launch_s = 5.0;
  EXPECT_DOUBLE_EQ(times_on(device, {}, layers, size).front().forward, 5 * 5.0);
  // Nobody knows its kernels: the rates.
  size.memory.layers.front() = {.output = 14};
  EXPECT_DOUBLE_EQ(times_on(device, {}, layers, size).front().forward, 2.0);
}

TEST(LayerTimes, OneLayerIsAStageAnyway) {
  EXPECT_FALSE(are_by_layer({}, 1));
  EXPECT_EQ(partition::one_layer_each(1).bounds, (std::vector<std::int64_t>{0, 1}));
}

}  // namespace
}  // namespace penstock::choose
