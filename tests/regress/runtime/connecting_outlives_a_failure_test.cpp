// A rank that connected to others which failed just after they said where they are waited five
// timeouts: nothing could end Gloo's wait for a socket, not even a failed rank's word.
#include <gtest/gtest.h>

#include <chrono>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "penstock/runtime/comm/world.h"

namespace penstock::comm {
namespace {

constexpr std::int32_t kRanks = 4;
constexpr std::chrono::seconds kDeadline(20);

// Of a rank that fails when it has told Gloo where it is, and not yet asked where others are.
class FailingStore : public c10d::PrefixStore {
 public:
  using c10d::PrefixStore::PrefixStore;

  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    c10d::PrefixStore::set(key, value);
    if (key.find("link/") == std::string::npos) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // The first rank waits by then.
    throw std::runtime_error("the disk is full");
  }
};

// Of two ranks, the one with the lower port waits for the other's socket.  So the first rank waits
// for a failed one in three rounds of four.
TEST(ConnectingOutlivesAFailure, TheFailedRanksWordEndsIt) {
  for (int round = 0; round < 4 && !HasFailure(); ++round) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> ranks;
    for (std::int32_t rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        c10::intrusive_ptr<c10d::Store> own = c10::make_intrusive<c10d::PrefixStore>("", store);
        if (rank > 0) own = c10::make_intrusive<FailingStore>("", store);
        const auto world = make_world(own, Rank(rank), kRanks, "127.0.0.1", Transport::Gloo,
                                      kDeadline, c10::Device(c10::kCPU));
        try {
          world->link(world->all_ranks());
          ADD_FAILURE() << "rank " << rank << " has its links";
        } catch (const std::exception& error) {
          const std::string said = error.what();
          EXPECT_NE(said.find("the disk is full"), std::string::npos) << said;
          world->fail(said);
        }
      });
    }
    for (std::thread& each : ranks) each.join();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kDeadline / 2) << "round " << round;
  }
}

}  // namespace
}  // namespace penstock::comm
