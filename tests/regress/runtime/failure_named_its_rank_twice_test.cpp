// "rank 1 failed: rank 1, 1f1b, instruction 4 (...): no memory" named the rank twice: the
// executor's errors begin with it, too.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "penstock/core/error.h"
#include "penstock/runtime/comm/world.h"

namespace penstock::comm {
namespace {

// What a rank hears that waits, after rank 0 of one has failed.
std::string heard_after(const std::string& message) {
  const auto world = make_world(c10::make_intrusive<c10d::HashStore>(), Rank(0), 1, "127.0.0.1",
                                Transport::Tcp, std::chrono::seconds(20), c10::Device(c10::kCPU));
  world->fail(Error(message));
  try {
    world->check_interrupt();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

TEST(FailureNamedItsRankTwice, ItIsNamedOnce) {
  EXPECT_EQ(heard_after("rank 0, 1f1b, instruction 4 (FORWARD): no memory"),
            "rank 0 failed: 1f1b, instruction 4 (FORWARD): no memory");
  EXPECT_EQ(heard_after("rank 0: no memory"), "rank 0 failed: no memory");
  EXPECT_EQ(heard_after("rank 1, 1f1b: no memory"), "rank 0 failed: rank 1, 1f1b: no memory");
  EXPECT_EQ(heard_after("rank 0 has no memory"), "rank 0 failed: rank 0 has no memory");
}

}  // namespace
}  // namespace penstock::comm
