// Ranks that found a difference ended at once, rank 0 with the store: a rank that had not yet read
// the others' texts said that the store's connection was closed, and not what differs.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/launch/port.h"

namespace penstock::comm {
namespace {

constexpr std::int32_t kRanks = 8;

// Rank 0 holds the store for as long as it has its communicator.
std::vector<std::string> texts_of(Rank rank, std::uint16_t port, int socket) {
  const bool is_host = rank.value == 0;
  const auto communicator =
      connect({.kind = is_host ? Rendezvous::Kind::Server : Rendezvous::Kind::Client,
               .host = "127.0.0.1",
               .port = port,
               .socket = is_host ? socket : -1,
               .rank = rank,
               .world_size = kRanks},
              std::chrono::seconds(20));
  return communicator->exchange("facts", std::string(1 << 18, 'x'));
}

// How many ranks got every text.
int readers_of_one_exchange() {
  auto listening = launch::listen_on("127.0.0.1", 0);
  const std::uint16_t port = listening.number;
  const int socket = listening.socket.release();
  std::atomic<int> whole{0};
  std::vector<std::thread> ranks;
  for (std::int32_t rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        if (texts_of(Rank(rank), port, socket).size() == kRanks) ++whole;
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    });
  }
  for (std::thread& each : ranks) each.join();
  return whole;
}

TEST(StoreEndsBeforeItsReaders, RankZeroLeavesAnExchangeLast) {
  for (int round = 0; round < 10; ++round) ASSERT_EQ(readers_of_one_exchange(), kRanks);
}

}  // namespace
}  // namespace penstock::comm
