#include "penstock/runtime/comm/call_watch.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/core/error.h"
#include "penstock/runtime/comm/calls.h"

namespace penstock::comm {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr const char* kBoth =
    "rank 0 is in save(), rank 1 is in step(): both are calls for all ranks";

void save(Communicator& communicator) {
  const Call call("save()");
  communicator.barrier("saved");
}

void step(Communicator& communicator) {
  const Call call("step()");
  at::Tensor came = at::zeros({1});
  communicator.receive(came, Rank(1 - communicator.rank().value), 0)->wait();
}

// How the bodies of two ranks end.
std::vector<std::string> errors_of(const std::function<void(Communicator&)>& first,
                                   const std::function<void(Communicator&)>& second,
                                   std::chrono::milliseconds deadline) {
  std::vector<std::string> errors(2);
  run_ranks(
      2,
      [&](Communicator& communicator) {
        communicator.link(communicator.all_ranks());
        try {
          (communicator.rank().value == 0 ? first : second)(communicator);
        } catch (const CommError& error) {
          errors[communicator.rank().index()] = error.message();
          communicator.fail(error);
        }
      },
      deadline);
  return errors;
}

TEST(CallWatch, RanksInDifferentCallsNeedNotWaitForTheDeadline) {
  const auto start = Clock::now();
  EXPECT_EQ(errors_of(save, step, 300s), (std::vector<std::string>{kBoth, kBoth}));
  EXPECT_LT(Clock::now() - start, 60s);
}

TEST(CallWatch, AtTheDeadlineItIsSaidWhereTheOthersAre) {
  const std::vector<std::string> errors = errors_of(
      save,
      [](Communicator& communicator) {
        {
          const Call call("destroy()");
        }
        while (true) {
          communicator.check_interrupt();
          std::this_thread::sleep_for(10ms);
        }
      },
      1s);
  EXPECT_NE(errors[0].find("; rank 0 is in save(), rank 1 is in no call since destroy(): save() is "
                           "a call for all ranks"),
            std::string::npos)
      << errors[0];
}

TEST(CallWatch, LeavesAloneWhoComesLate) {
  const auto late = [](Communicator& communicator) {
    std::this_thread::sleep_for(4s);
    save(communicator);
  };
  EXPECT_EQ(errors_of(save, late, 300s), (std::vector<std::string>{"", ""}));
}

TEST(CallWatch, LeavesAloneWhoGoesOnAhead) {
  const auto ahead = [](Communicator& communicator) {
    {
      const Call call("save()");
      communicator.send(at::zeros({1}), Rank(1), 0)->wait();
    }
    save(communicator);
  };
  const auto behind = [](Communicator& communicator) {
    {
      const Call call("save()");
      at::Tensor came = at::zeros({1});
      communicator.receive(came, Rank(0), 0)->wait();
      std::this_thread::sleep_for(4s);
    }
    save(communicator);
  };
  EXPECT_EQ(errors_of(ahead, behind, 300s), (std::vector<std::string>{"", ""}));
}

}  // namespace
}  // namespace penstock::comm
