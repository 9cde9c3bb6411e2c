#include "penstock/runtime/comm/group_messages.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/core/text.h"
#include "tests/comm/failure_of.h"

namespace penstock::comm {
namespace {

// Elements: none, fewer than ranks, not a multiple of their number; sent whole and in parts.
constexpr std::int64_t kSizes[] = {0, 1, 7, 1000, 33'001, 100'003};

class Collectives : public testing::TestWithParam<Transport> {
 protected:
  static void on_ranks(std::int32_t count, const std::function<void(Communicator&)>& body) {
    run_ranks(count, body, std::chrono::seconds(60), GetParam());
  }
};

INSTANTIATE_TEST_SUITE_P(Over, Collectives,
                         testing::Values(Transport::Shm, Transport::Tcp, Transport::Gloo),
                         [](const auto& each) -> std::string {
                           if (each.param == Transport::Shm) return "Shm";
                           return each.param == Transport::Tcp ? "Tcp" : "Gloo";
                         });

// What a rank adds: numbers of many magnitudes, whose sum depends on the order.
at::Tensor summand(std::int32_t rank, std::int64_t size, at::ScalarType type) {
  const at::Tensor i = at::arange(size, at::kDouble) + 1;
  return ((i * (rank + 1) * 0.37).sin() * (i * (rank + 2)).cos().mul(9).exp()).to(type);
}

TEST_P(Collectives, SumInTheOrderOfTheRanks) {
  for (const std::int32_t ranks : {2, 3, 5}) {
    on_ranks(ranks, [&](Communicator& communicator) {
      const Group group = communicator.make_group(communicator.all_ranks());
      for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong}) {
        for (const std::int64_t size : kSizes) {
          const at::ScalarType inner = type == at::kBFloat16 ? at::kFloat : type;
          at::Tensor expected = summand(0, size, type).to(inner);
          for (std::int32_t r = 1; r < ranks; ++r) expected.add_(summand(r, size, type));
          const at::Tensor value = summand(communicator.rank().value, size, type);
          communicator.all_reduce(value, group)->wait();
          EXPECT_TRUE(value.equal(expected.to(type))) << ranks << " " << type << " " << size;
        }
      }
    });
  }
}

TEST_P(Collectives, GiveTheRootsValueToAll) {
  on_ranks(3, [&](Communicator& communicator) {
    const Group group = communicator.make_group(communicator.all_ranks());
    for (std::int32_t root = 0; root < 3; ++root) {
      for (const std::int64_t size : kSizes) {
        const at::Tensor value = summand(communicator.rank().value, size, at::kFloat);
        communicator.broadcast(value, group, root)->wait();
        EXPECT_TRUE(value.equal(summand(root, size, at::kFloat))) << root << " " << size;
      }
    }
  });
}

// Large ones among them, of which each rank begins the second half as it waits.
TEST_P(Collectives, AreWaitedForInAnyOrder) {
  on_ranks(2, [&](Communicator& communicator) {
    const Group group = communicator.make_group(communicator.all_ranks());
    std::vector<at::Tensor> values;
    std::vector<std::unique_ptr<Transfer>> sums;
    for (int i = 0; i < 20; ++i) {
      values.push_back(at::full({kSizes[i % std::ssize(kSizes)]}, i));
      sums.push_back(communicator.all_reduce(values.back(), group));
    }
    if (communicator.rank().value == 0) std::ranges::reverse(sums);
    for (const auto& each : sums) each->wait();
    for (int i = 0; i < 20; ++i) {
      EXPECT_TRUE(values[static_cast<std::size_t>(i)].eq(2 * i).all().item<bool>()) << i;
    }
  });
}

// Two ranks that share several groups, made and used in another order than others have them.
TEST_P(Collectives, OfSeveralGroupsKeepApart) {
  on_ranks(3, [&](Communicator& communicator) {
    const std::int32_t here = communicator.rank().value;
    const auto make = [&](const std::vector<Rank>& ranks) {
      return std::ranges::count(ranks, Rank(here)) > 0 ? communicator.make_group(ranks) : Group{};
    };
    const Group last = make({Rank(1), Rank(2)});
    const Group all = make({Rank(0), Rank(1), Rank(2)});
    const Group first = make({Rank(0), Rank(1)});
    for (const std::int64_t size : kSizes) {
      const at::Tensor of_all = at::full({size}, 1 << here);
      const at::Tensor of_first = at::full({size}, 10 << here);
      const at::Tensor of_last = at::full({size}, 100 << here);
      std::vector<std::unique_ptr<Transfer>> sums;
      if (here < 2) sums.push_back(communicator.all_reduce(of_first, first));
      sums.push_back(communicator.all_reduce(of_all, all));
      if (here > 0) sums.push_back(communicator.all_reduce(of_last, last));
      for (const auto& each : sums) each->wait();
      EXPECT_TRUE(of_all.equal(at::full({size}, 7)));
      EXPECT_TRUE(here == 2 || of_first.equal(at::full({size}, 30)));
      EXPECT_TRUE(here == 0 || of_last.equal(at::full({size}, 600)));
    }
  });
}

TEST_P(Collectives, NameTheGroupAndWhoIsMissing) {
  on_ranks(3, [&](Communicator& communicator) {
    const Group group = communicator.make_group(communicator.all_ranks());
    communicator.set_deadline(std::chrono::milliseconds(300));
    if (communicator.rank().value != 1) {
      const CommError error =
          failure_of([&] { communicator.all_reduce(at::zeros({6}), group)->wait(); });
      EXPECT_NE(std::string(error.what())
                    .find("all-reduce over ranks 0, 1, 2, 24 bytes: receive from rank 1"),
                std::string::npos)
          << error.what();
    }
    communicator.set_deadline(std::chrono::seconds(60));
    communicator.barrier("waited");
  });
}

TEST_P(Collectives, RefuseTensorsOfOtherSizes) {
  if (GetParam() == Transport::Gloo) GTEST_SKIP() << "Gloo ends the process (docs/gotchas.md)";
  on_ranks(2, [&](Communicator& communicator) {
    const Group group = communicator.make_group(communicator.all_ranks());
    const at::Tensor value = at::zeros({4 + communicator.rank().value});
    const CommError error = failure_of([&] { communicator.all_reduce(value, group)->wait(); });
    EXPECT_NE(std::string(error.what()).find(" bytes came"), std::string::npos) << error.what();
    communicator.barrier("waited");
  });
}

// The one goes whole, the other one in halves of as many bytes.
TEST_P(Collectives, DoNotTakeAPartForAWhole) {
  on_ranks(2, [&](Communicator& communicator) {
    const Group group = communicator.make_group(communicator.all_ranks());
    communicator.set_deadline(std::chrono::milliseconds(300));
    const at::Tensor value = at::zeros({32'768 << communicator.rank().value});
    failure_of([&] { communicator.all_reduce(value, group)->wait(); });
    communicator.set_deadline(std::chrono::seconds(60));
    communicator.barrier("waited");
  });
}

}  // namespace
}  // namespace penstock::comm
