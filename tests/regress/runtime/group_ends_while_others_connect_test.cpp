// A rank that was connected, and needed its group no more, ended it while others still connected:
// "Gloo connectFullMesh failed: Connection closed by peer", or a wait of five timeouts.  A
// PipelineModule that was made in zero.Init did so after its last layer.
#include <gtest/gtest.h>

#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "penstock/runtime/comm/world.h"

namespace penstock::comm {
namespace {

constexpr std::int32_t kRanks = 4;
constexpr std::chrono::milliseconds kPause(10);

// Of a rank that says where it is, and then is slow to look where the others are.
class SlowStore : public c10d::PrefixStore {
 public:
  using c10d::PrefixStore::PrefixStore;

  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& wait) override {
    std::this_thread::sleep_for(kPause);
    c10d::PrefixStore::wait(keys, wait);
  }

  std::vector<std::uint8_t> get(const std::string& key) override {
    std::this_thread::sleep_for(kPause);
    return c10d::PrefixStore::get(key);
  }

  std::vector<std::vector<std::uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    std::this_thread::sleep_for(kPause);
    return c10d::PrefixStore::multiGet(keys);
  }
};

// Ranks that end as soon as `use` returns, round after round; the first of them is slow.
void run_rounds(int rounds, Transport transport, const std::function<void(Communicator&)>& use) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  for (int round = 0; round < rounds && !testing::Test::HasFailure(); ++round) {
    std::vector<std::thread> ranks;
    for (std::int32_t rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        try {
          const std::string name = std::to_string(round);
          c10::intrusive_ptr<c10d::Store> own;
          if (rank == 0) {
            own = c10::make_intrusive<SlowStore>(name, store);
          } else {
            own = c10::make_intrusive<c10d::PrefixStore>(name, store);
          }
          use(*make_world(own, Rank(rank), kRanks, "127.0.0.1", transport, std::chrono::seconds(5),
                          c10::Device(c10::kCPU)));
        } catch (const std::exception& error) {
          ADD_FAILURE() << "round " << round << ": " << error.what();
        }
      });
    }
    for (std::thread& each : ranks) each.join();
  }
}

TEST(GroupEndsWhileOthersConnect, WhoHasAGroupMayEnd) {
  run_rounds(5, Transport::Auto, [](Communicator& each) { each.make_group(each.all_ranks()); });
}

TEST(GroupEndsWhileOthersConnect, WhoHasItsLinksMayEnd) {
  for (const Transport transport : {Transport::Shm, Transport::Tcp, Transport::Gloo}) {
    run_rounds(2, transport, [](Communicator& each) { each.link(each.all_ranks()); });
  }
}

}  // namespace
}  // namespace penstock::comm
