// What ranks give their devices, written out and replayed: which layouts hang, and the circle.
#include "penstock/plan/lower/device_proof.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "penstock/core/text.h"
#include "penstock/plan/lower/programs.h"
#include "penstock/schedule/generators/generators.h"

namespace penstock::lower {
namespace {

using config::ZeroStage;
using Call = DeviceCall::Does;

struct DeviceLayout {
  std::string schedule = "1f1b";
  mesh::Shape mesh;
  std::int32_t microbatches = 4;
  ZeroStage zero = ZeroStage::Off;
  std::int32_t sums = 4;
};

DeviceOrder order_of(const DeviceLayout& layout) {
  const auto schedule = training_program({.schedule = layout.schedule,
                                          .ranks = layout.mesh.pipe,
                                          .microbatches = layout.microbatches});
  const std::int32_t stages = schedule.schedule().stages;
  partition::Partition partition;
  for (std::int64_t s = 0; s <= stages; ++s) partition.bounds.push_back(s);
  return device_order(schedule, partition, mesh::make_mesh(layout.mesh),
                      {.sharing = {.stage = layout.zero, .ranks = layout.mesh.data},
                       .sums = std::vector(static_cast<std::size_t>(stages), layout.sums)});
}

std::int64_t count(const std::vector<DeviceCall>& calls, Call does) {
  return std::ranges::count(calls, does, &DeviceCall::does);
}

TEST(DeviceOrder, HasEachEndOfEachMessageOnce) {
  for (const ZeroStage zero :
       {ZeroStage::Off, ZeroStage::OptimizerStates, ZeroStage::Gradients, ZeroStage::Parameters}) {
    const DeviceOrder order =
        order_of({.schedule = "zb_h1", .mesh = {.pipe = 2, .data = 3}, .zero = zero});
    std::vector<int> sent(order.messages.size()), received(sent), awaited(sent);
    for (const auto& calls : order.ranks) {
      for (const DeviceCall& call : calls) {
        const auto what = static_cast<std::size_t>(call.what);
        if (call.does == Call::Send) ++sent[what];
        if (call.does == Call::Begin) ++received[what];
        if (call.does == Call::Await) ++awaited[what];
      }
    }
    EXPECT_EQ(sent, std::vector(sent.size(), 1));
    EXPECT_EQ(received, sent);
    EXPECT_EQ(awaited, std::vector(sent.size(), 2));
    // One neighbour and two other replicas, both ways.
    EXPECT_EQ(order.message_streams(), std::vector(6, 6));
  }
}

TEST(DeviceOrder, HasMessagesOfSumsAndGathersByStage) {
  const auto sends = [](ZeroStage zero) {
    const DeviceOrder order =
        order_of({.schedule = "gpipe", .mesh = {.pipe = 1, .data = 4}, .zero = zero, .sums = 5});
    return count(order.ranks[0], Call::Send);
  };
  EXPECT_EQ(sends(ZeroStage::Off), 5 * 3 * 2);
  EXPECT_EQ(sends(ZeroStage::OptimizerStates), 5 * 3 * 2);
  EXPECT_EQ(sends(ZeroStage::Gradients), 5 * 3 * 2);
  EXPECT_EQ(sends(ZeroStage::Parameters), 5 * 3 + 5 * 3 * 8);  // Pages of 4 F and 4 B.
}

TEST(DeviceProof, PassesEverySchedule) {
  for (const schedule::Generator& generator : schedule::registry()) {
    if (generator.purpose != schedule::Purpose::Train) continue;
    for (const std::int32_t pipe : {1, 2, 4}) {
      const schedule::Sizes sizes{
          .ranks = pipe, .stages_per_rank = generator.stages_per_rank, .microbatches = 8};
      if (!generator.objection(sizes).empty()) continue;
      const std::string name(generator.name);
      const auto schedule = training_program({.schedule = name, .ranks = pipe, .microbatches = 8});
      if (schedule.schedule().replicas > 1) continue;
      for (const std::int32_t data : {1, 2, 4}) {
        for (const ZeroStage zero : {ZeroStage::Off, ZeroStage::OptimizerStates,
                                     ZeroStage::Gradients, ZeroStage::Parameters}) {
          SCOPED_TRACE(str(name, " ", pipe, " x ", data, " ZeRO ", number_of(zero)));
          const DeviceProof proof = prove(order_of({.schedule = name,
                                                    .mesh = {.pipe = pipe, .data = data},
                                                    .microbatches = 8,
                                                    .zero = zero}),
                                          {});
          EXPECT_EQ(proof.objection, "");
          EXPECT_TRUE(proof.is_of_every_order) << proof.held_max;
        }
      }
    }
  }
}

// Sends of one sum, to five others, hold 160 of 132 multiprocessors where each holds 32.
TEST(DeviceProof, RefusesSumsWhoseSendsHoldTheWholeDevice) {
  for (const ZeroStage zero : {ZeroStage::Off, ZeroStage::Gradients}) {
    const DeviceProof six =
        prove(order_of({.schedule = "gpipe", .mesh = {.pipe = 1, .data = 6}, .zero = zero}),
              {.held = 32});
    EXPECT_EQ(
        six.objection,
        "rank 0 cannot compute 0B3: 5 kernels that wait for other ranks hold all 132 "
        "multiprocessors; rank 1 cannot compute 0B3: 5 kernels that wait for other ranks hold "
        "all 132 multiprocessors [X013]");
    EXPECT_FALSE(six.is_of_every_order);
    const DeviceProof eight = prove(
        order_of({.schedule = "gpipe", .mesh = {.pipe = 1, .data = 6}, .zero = zero}), {.held = 8});
    EXPECT_EQ(eight.objection, "");
    EXPECT_TRUE(eight.is_of_every_order);
  }
}

// Messages of a group share streams: with one for each, 17 sends would hold 136 of 132.
TEST(DeviceProof, AnyNumberOfReplicasLeavesAMultiprocessor) {
  for (const std::int32_t data : {7, 8, 18, 40}) {
    for (const ZeroStage zero : {ZeroStage::Off, ZeroStage::OptimizerStates, ZeroStage::Gradients,
                                 ZeroStage::Parameters}) {
      SCOPED_TRACE(str(data, " ZeRO ", number_of(zero)));
      const DeviceOrder order = order_of({.schedule = "gpipe",
                                          .mesh = {.pipe = 1, .data = data},
                                          .microbatches = 2,
                                          .zero = zero});
      EXPECT_EQ(order.message_streams(), std::vector(static_cast<std::size_t>(data), 12));
      const DeviceProof proof = prove(order, {});
      EXPECT_EQ(proof.objection, "");
      EXPECT_TRUE(proof.is_of_every_order);
    }
  }
  const DeviceOrder inner =
      order_of({.schedule = "1f1b", .mesh = {.pipe = 3, .data = 9}, .zero = ZeroStage::Gradients});
  EXPECT_EQ(std::ranges::max(inner.message_streams()), 12 + 2 * 2);
  EXPECT_TRUE(prove(inner, {}).is_of_every_order);
}

// Rank 2 sends to rank 1 what rank 1 receives last, in the stream of what rank 0 sends there; rank
// 0 sends only when rank 2 has what it sends last.
TEST(DeviceProof, TellsOfWhatComesFirstInAStream) {
  DeviceOrder order{.ranks = {{}, {}, {}},
                    .messages = {{.from = Rank(0), .to = Rank(1), .of_replicas = 0},
                                 {.from = Rank(2), .to = Rank(1), .of_replicas = 0},
                                 {.from = Rank(1), .to = Rank(0), .of_replicas = 1}},
                    .groups = {},
                    .places = {"0F0"}};
  order.ranks[0] = {{.does = Call::Send, .what = 0},
                    {.does = Call::Begin, .what = 2},
                    {.does = Call::Await, .what = 2},
                    {.does = Call::Compute}};
  order.ranks[1] = {{.does = Call::Post, .what = 1},  {.does = Call::Begin, .what = 0},
                    {.does = Call::Begin, .what = 1}, {.does = Call::Await, .what = 1},
                    {.does = Call::Send, .what = 2},  {.does = Call::Await, .what = 0},
                    {.does = Call::Await, .what = 2}};
  order.ranks[2] = {{.does = Call::Send, .what = 1}};
  EXPECT_EQ(prove(order, {}).objection, "");
  // Behind the send, which waits for what comes behind it.
  order.ranks[0] = {{.does = Call::Begin, .what = 2},
                    {.does = Call::Await, .what = 2},
                    {.does = Call::Compute},
                    {.does = Call::Send, .what = 0}};
  EXPECT_NE(prove(order, {}).objection, "");
}

// Each rank computes only behind its send, and receives behind that.
TEST(DeviceProof, RefusesRanksThatAwaitTheirSendsFirst) {
  DeviceOrder order{.ranks = {{}, {}},
                    .messages = {{Rank(0), Rank(1)}, {Rank(1), Rank(0)}},
                    .groups = {},
                    .places = {"0F0"}};
  for (std::int32_t r = 0; r < 2; ++r) {
    order.ranks[static_cast<std::size_t>(r)] = {{.does = Call::Send, .what = r},
                                                {.does = Call::Await, .what = r},
                                                {.does = Call::Compute},
                                                {.does = Call::Begin, .what = 1 - r},
                                                {.does = Call::Await, .what = 1 - r},
                                                {.does = Call::Compute}};
  }
  EXPECT_EQ(prove(order, {}).objection,
            "rank 0 computes nothing behind 0F0 before a message from rank 0 to rank 1; rank 1 "
            "computes nothing behind 0F0 before a message from rank 1 to rank 0 [X012]");
  for (auto& calls : order.ranks) std::swap(calls[1], calls[3]);
  EXPECT_EQ(prove(order, {}).objection, "");
}

}  // namespace
}  // namespace penstock::lower
