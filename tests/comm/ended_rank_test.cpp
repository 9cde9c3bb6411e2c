// Who waits for a rank that makes no more calls hears at once which call was its last.
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/core/error.h"
#include "penstock/core/ids.h"
#include "tests/support/message_of.h"

namespace penstock::comm {
namespace {

using testing_support::message_of;
using Wait = std::function<void(Communicator&, Group)>;

// What rank 0 hears in its third call, which rank 1 does not make.
std::string heard(const Wait& wait) {
  std::string text;
  const auto body = [&](Communicator& ranks) {
    ranks.begin_call("Trainer()");
    ranks.link({Rank(1 - ranks.rank().value)});
    const Group both = ranks.make_group(ranks.all_ranks());
    ranks.begin_call("Trainer::step() with 0 steps taken");
    ranks.all_reduce(at::ones({1}), both)->wait();
    if (ranks.rank().value == 1) return;
    text = message_of([&] {
      ranks.begin_call("Checkpoints::save() with 1 steps taken");
      wait(ranks, both);
    });
  };
  const auto begun = std::chrono::steady_clock::now();
  run_ranks(2, body, std::chrono::seconds(60));
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(30));
  return text;
}

TEST(EndedRank, IsNamedWithItsLastCallWhateverIsWaitedFor) {
  const std::vector<Wait> waits = {
      [](Communicator& ranks, Group both) { ranks.all_reduce(at::ones({1}), both)->wait(); },
      [](Communicator& ranks, Group both) { ranks.broadcast(at::ones({1}), both, 1)->wait(); },
      [](Communicator& ranks, Group) { ranks.receive(at::ones({1}), Rank(1), 7)->wait(); },
      [](Communicator& ranks, Group) { ranks.exchange("facts", ""); }};
  for (const Wait& wait : waits) {
    const std::string said = heard(wait);
    EXPECT_NE(said.find("rank 1 has ended: its last call was Trainer::step() with 0 steps taken; "
                        "rank 0 is in Checkpoints::save() with 1 steps taken"),
              std::string::npos)
        << said;
  }
}

}  // namespace
}  // namespace penstock::comm
