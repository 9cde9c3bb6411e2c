// Two runs in one store, one after the other, as two `penstock train` in one torchrun worker: the
// second read the keys of the first, and so connected to sockets of processes that had ended.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/core/text.h"

namespace penstock::comm {
namespace {

TEST(SecondRunInAStore, DoesNotReadTheFirstOnesKeys) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  const auto server = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  std::atomic<int> right{0};
  std::vector<std::thread> ranks;
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      for (int run = 0; run < 3; ++run) {
        const auto communicator =
            connect({.port = server->getPort(), .rank = Rank(rank), .world_size = 2},
                    std::chrono::seconds(20));
        const auto texts = communicator->exchange("facts", str("run ", run));
        if (texts == std::vector<std::string>(2, str("run ", run))) ++right;
        communicator->barrier("end");
      }
    });
  }
  for (std::thread& each : ranks) each.join();
  EXPECT_EQ(right.load(), 6);
}

}  // namespace
}  // namespace penstock::comm
