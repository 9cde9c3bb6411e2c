#include "penstock/plan/choose/sharers.h"

#include <gtest/gtest.h>

#include "penstock/plan/choose/layer_times.h"

namespace penstock::choose {
namespace {

// Two nodes of 8 ranks.  A byte takes a second between nodes, and a tenth within one.
constexpr Network kNetwork = {
    .intra = {.bandwidth = 10.0}, .inter = {.bandwidth = 1.0}, .ranks_per_node = 8};

Layout layout(std::int32_t data, std::int32_t context, std::int32_t tensor) {
  return {.mesh = mesh::Shape{.data = data}
                      .with(mesh::Axis::Context, context)
                      .with(mesh::Axis::Tensor, tensor),
          .zero = ZeroStage::OptimizerStates};
}

TEST(Sharers, AreThoseOfSamplesAndTokens) {
  const Sharers sharers = sharers_of(layout(2, 4, 2), kNetwork, Rank(0));
  EXPECT_EQ(sharers.ranks, 8);
  EXPECT_EQ(sharers.copies, 1);
  // Four ranks of a node, each with a ring of its own over its link: 7 / 8 of 80 bytes at 4.
  EXPECT_DOUBLE_EQ(sharers.gathered(80.0), 70.0 / 4.0);
  EXPECT_DOUBLE_EQ(sharers.summed(80.0), sharers.gathered(80.0));
}

TEST(Sharers, CopiesSumTheirPiecesOnceMore) {
  Layout hybrid = layout(16, 1, 1);
  hybrid.shards = 8;
  const Sharers sharers = sharers_of(hybrid, kNetwork, Rank(0));
  EXPECT_EQ(sharers.ranks, 8);
  EXPECT_EQ(sharers.copies, 2);
  EXPECT_DOUBLE_EQ(sharers.gathered(80.0), 7.0);  // 70 bytes at 10.
  // Then each rank's 10 bytes with its copy: half is scattered and half gathered, at 1.
  EXPECT_DOUBLE_EQ(sharers.summed(80.0), 7.0 + 2 * 5.0);
}

TEST(Sharers, ExpertsAreOnOtherRanks) {
  Layout folded = layout(8, 1, 2);
  folded.experts = 8;
  // 16 ranks of a stage: two have the same experts, one in each node.
  const Sharers sharers = expert_sharers_of(folded, kNetwork, Rank(0));
  EXPECT_EQ(sharers.ranks, 2);
  EXPECT_DOUBLE_EQ(sharers.gathered(80.0), 40.0);
  // Where no ranks share experts, they are cut as others are.
  folded.experts = 1;
  EXPECT_EQ(expert_sharers_of(folded, kNetwork, Rank(0)).ranks, 8);
}

TEST(AllToAll, ANodesOwnMessagesTravelBesideOthers) {
  EXPECT_DOUBLE_EQ(all_to_all_time(kNetwork, {.ranks = 1}, 80.0), 0.0);
  EXPECT_DOUBLE_EQ(all_to_all_time(kNetwork, {.ranks = 8}, 80.0), 7.0);    // 70 bytes at 10.
  EXPECT_DOUBLE_EQ(all_to_all_time(kNetwork, {.ranks = 16}, 80.0), 40.0);  // 40 to the other node.
  EXPECT_DOUBLE_EQ(all_to_all_time(kNetwork, {.ranks = 2, .apart = 8}, 80.0), 40.0);
}

TEST(AllToAll, OnceForANodeIsLess) {
  // Of a token's two copies, a node gets none by a chance of a fourth: three fourths of 40 bytes.
  EXPECT_DOUBLE_EQ(by_node_time(kNetwork, {.ranks = 16}, 80.0, 2.0), 30.0);
  EXPECT_DOUBLE_EQ(by_node_time(kNetwork, {.ranks = 16}, 80.0, 1.0), 40.0);
  EXPECT_DOUBLE_EQ(by_node_time(kNetwork, {.ranks = 8}, 80.0, 2.0), 7.0);
}

std::vector<LayerTimes> times_with(const memory::LayerExchange& exchange, double attention_s) {
  devices::DeviceModel device{
      .short_peak = 1.0, .attention_share = 1.0, .attention_backward_share = 1.0};
  device.kernel_s = 0.0;
  const auto operations = static_cast<std::int64_t>(attention_s);
  const memory::MeasuredSize size{
      .context = 4,
      .memory = {.layers = {{.exchanges = {exchange},
                             .forward_kernels = {
                                 {{devices::KernelKind::ShortAttention, operations}, 1}}}}}};
  std::vector<LayerTimes> times(1);
  add_axis_exchanges(kNetwork, {.context = {.ranks = 4, .apart = 2}}, size, device, times);
  return times;
}

// Four ranks of a node: three steps of 20 bytes at 10, each behind a fourth of the attention.
TEST(AxisExchanges, ARingHidesBehindAttention) {
  const memory::LayerExchange ring{
      .way = memory::ExchangeWay::Ring, .forward_bytes = 20, .forward_count = 1};
  const LayerTimes half = times_with(ring, 4.0).front();
  EXPECT_DOUBLE_EQ(half.forward, 3.0);
  EXPECT_DOUBLE_EQ(half.context_forward.waited, 3.0);
  EXPECT_DOUBLE_EQ(half.context_forward.hidden, 3.0);
  EXPECT_DOUBLE_EQ(half.context_forward.bytes, 60.0);
  EXPECT_DOUBLE_EQ(times_with(ring, 8.0).front().forward, 0.0);
}

TEST(AxisExchanges, NothingHidesAGather) {
  const memory::LayerExchange gather{.way = memory::ExchangeWay::Gather,
                                     .forward_bytes = 20,
                                     .forward_count = 1,
                                     .backward_bytes = 20,
                                     .backward_count = 2};
  const LayerTimes times = times_with(gather, 8.0).front();
  EXPECT_DOUBLE_EQ(times.forward, 6.0);  // 60 bytes of others at 10.
  EXPECT_DOUBLE_EQ(times.backward, 12.0);
  EXPECT_DOUBLE_EQ(times.input, 12.0);
  EXPECT_DOUBLE_EQ(times.forward_exchange, 6.0);
  EXPECT_DOUBLE_EQ(times.backward_exchange, 12.0);
  EXPECT_DOUBLE_EQ(times.backward_exchange_again, 18.0);  // The forward runs twice.
}

}  // namespace
}  // namespace penstock::choose
