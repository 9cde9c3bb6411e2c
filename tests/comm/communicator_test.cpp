#include "penstock/comm/communicator.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <latch>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "tests/comm/failure_of.h"
#include "tests/support/foreign_device.h"

namespace penstock::comm {
namespace {

using std::chrono::milliseconds;

// Values that depend on the rank and whose sum depends on the order of addition.
at::Tensor awkward(Rank rank, std::int64_t numel) {
  const at::Tensor x = at::arange(numel, at::kFloat);
  return (x * 0.37f + 1.7f * static_cast<float>(rank.value)).sin() * std::pow(10.0, rank.value % 3);
}

// What holds for messages over every transport.
class Messages : public testing::TestWithParam<Transport> {
 protected:
  void run(std::int32_t world_size, const std::function<void(Communicator&)>& body) {
    run_ranks(world_size, body, std::chrono::seconds(60), GetParam());
  }
};
INSTANTIATE_TEST_SUITE_P(Gloo, Messages, testing::Values(Transport::Gloo));
INSTANTIATE_TEST_SUITE_P(Tcp, Messages, testing::Values(Transport::Tcp));
INSTANTIATE_TEST_SUITE_P(Shm, Messages, testing::Values(Transport::Shm));

TEST_P(Messages, GoFromDeviceToDevice) {
  run(2, [](Communicator& communicator) {
    const Rank peer(1 - communicator.rank().value);
    communicator.link({peer});
    const Group both = communicator.make_group({Rank(0), Rank(1)});
    const at::Tensor mine = awkward(communicator.rank(), 1000);
    const at::Tensor there = mine.to(testing_support::device_under_test());
    const at::Tensor received = at::zeros_like(there);
    const auto receive = communicator.receive(received, peer, /*tag=*/3);
    communicator.send(there, peer, /*tag=*/3)->wait();
    receive->wait();
    EXPECT_TRUE(at::equal(received.cpu(), awkward(peer, 1000)));
    communicator.all_reduce(there, both)->wait();
    EXPECT_TRUE(at::equal(there.cpu(), awkward(Rank(0), 1000) + awkward(Rank(1), 1000)));
    const at::Tensor whole = mine.to(testing_support::device_under_test());
    communicator.broadcast(whole, both, /*root=*/1)->wait();
    EXPECT_TRUE(at::equal(whole.cpu(), awkward(Rank(1), 1000)));
  });
}

TEST_P(Messages, TensorsWithGapsArriveInTheirPlaces) {
  run(2, [](Communicator& communicator) {
    const Rank peer(1 - communicator.rank().value);
    communicator.link({peer});
    const Group both = communicator.make_group({Rank(0), Rank(1)});
    const auto turned = [](Rank rank) { return awkward(rank, 12).view({3, 4}).t(); };
    const at::Tensor received = at::zeros({4, 6}).narrow(1, 2, 3);
    const auto receive = communicator.receive(received, peer, /*tag=*/0);
    const auto send = communicator.send(turned(communicator.rank()), peer, /*tag=*/0);
    receive->wait();
    send->wait();
    EXPECT_TRUE(at::equal(received, turned(peer)));
    communicator.all_reduce(received, both)->wait();
    EXPECT_TRUE(at::equal(received, turned(Rank(0)) + turned(Rank(1))));
    const at::Tensor whole = turned(communicator.rank());
    communicator.broadcast(whole, both, /*root=*/1)->wait();
    EXPECT_TRUE(at::equal(whole, turned(Rank(1))));
  });
}

// host_copy.h says why.
TEST_P(Messages, NoTransferHoldsTheCallersTensor) {
  run(2, [](Communicator& communicator) {
    const Rank peer(1 - communicator.rank().value);
    communicator.link({peer});
    const Group both = communicator.make_group({Rank(0), Rank(1)});
    const at::Tensor sent = at::zeros({5}), received = at::zeros({5}), summed = at::zeros({5});
    const auto receive = communicator.receive(received, peer, /*tag=*/0);
    const auto send = communicator.send(sent, peer, /*tag=*/0);
    const auto sum = communicator.all_reduce(summed, both);
    const auto broadcast = communicator.broadcast(sent, both, /*root=*/0);
    for (const at::Tensor& each : {std::cref(sent), std::cref(received), std::cref(summed)}) {
      EXPECT_EQ(each.use_count(), 1U);
    }
    for (const auto& transfer : {&receive, &send, &sum, &broadcast}) (*transfer)->wait();
  });
}

TEST_P(Messages, MessagesFindEachOtherByTagInAnyOrder) {
  run(2, [](Communicator& communicator) {
    constexpr std::int32_t kMessages = 16;
    const Rank peer(1 - communicator.rank().value);
    communicator.link({peer});
    std::vector<at::Tensor> received;
    std::vector<std::unique_ptr<Transfer>> transfers;
    for (std::int32_t i = 0; i < kMessages; ++i) {
      const std::int32_t tag = (i * 7 + communicator.rank().value) % kMessages;
      transfers.push_back(
          communicator.send(at::full({5}, 100.0 * communicator.rank().value + tag), peer, tag));
    }
    for (std::int32_t tag = kMessages; tag-- > 0;) {
      received.push_back(at::zeros({5}));
      transfers.push_back(communicator.receive(received.back(), peer, tag));
    }
    for (auto& transfer : transfers) transfer->wait();
    for (std::int32_t i = 0; i < kMessages; ++i) {
      const double expected = 100.0 * peer.value + (kMessages - 1 - i);
      EXPECT_TRUE(at::equal(received[static_cast<std::size_t>(i)], at::full({5}, expected)));
    }
  });
}

TEST_P(Messages, TwoMessagesWithOneTagKeepTheirOrder) {
  run(2, [](Communicator& communicator) {
    communicator.link({Rank(0), Rank(1)});
    std::vector<at::Tensor> values;
    std::vector<std::unique_ptr<Transfer>> transfers;
    for (std::int32_t i = 0; i < 8; ++i) {
      if (communicator.rank().value == 0) {
        transfers.push_back(communicator.send(at::full({3}, i), Rank(1), 5));
      } else {
        values.push_back(at::zeros({3}, at::kLong));
        transfers.push_back(communicator.receive(values.back(), Rank(0), 5));
      }
    }
    for (auto& transfer : transfers) transfer->wait();
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(values[i][0].item<std::int64_t>(), static_cast<std::int64_t>(i));
    }
  });
}

TEST_P(Messages, LargeEmptyAndEveryTypeOfTensorArrive) {
  run(2, [](Communicator& communicator) {
    const Rank peer(1 - communicator.rank().value);
    communicator.link({peer});
    const std::vector<at::Tensor> values = {
        at::arange(std::int64_t{1} << 23, at::kFloat),  // 32 MiB: more than sockets hold.
        at::empty({0}),
        at::empty({4, 0, 2}),
        at::arange(7, at::kLong).view({7, 1}),
        at::arange(9, at::kBFloat16),
        at::full({}, 2.5, at::kDouble),
        at::full({3}, true)};
    std::vector<std::unique_ptr<Transfer>> transfers;
    std::vector<at::Tensor> received;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto tag = static_cast<std::int32_t>(i);
      transfers.push_back(communicator.send(values[i], peer, tag));
      received.push_back(at::empty(values[i].sizes(), values[i].options()));
      transfers.push_back(communicator.receive(received.back(), peer, tag));
    }
    for (auto& transfer : transfers) transfer->wait();
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_TRUE(at::equal(received[i], values[i])) << "message " << i;
    }
  });
}

TEST_P(Messages, ATransferKeepsItsTensorAlive) {
  run(2, [](Communicator& communicator) {
    communicator.link({Rank(0), Rank(1)});
    if (communicator.rank().value == 0) {
      const auto transfer = communicator.send(at::full({1 << 20}, 3.0f), Rank(1), 0);
      const at::Tensor other = at::full({1 << 20}, 4.0f);  // Would take the freed memory.
      transfer->wait();
    } else {
      const at::Tensor received = at::zeros({1 << 20});
      communicator.receive(received, Rank(0), 0)->wait();
      EXPECT_TRUE(at::equal(received, at::full({1 << 20}, 3.0f)));
    }
  });
}

TEST(Communicator, AllReduceGivesTheSameBitsToEveryRank) {
  for (const std::int32_t ranks : {2, 3, 5}) {
    for (const std::int64_t numel : {1, 7, 1000, 100003}) {
      std::vector<at::Tensor> sums(static_cast<std::size_t>(ranks));
      run_ranks(ranks, [&](Communicator& communicator) {
        const Group group = communicator.make_group(communicator.all_ranks());
        const at::Tensor value = awkward(communicator.rank(), numel);
        communicator.all_reduce(value, group)->wait();
        sums[communicator.rank().index()] = value;
      });
      at::Tensor exact = at::zeros({numel}, at::kDouble);
      for (std::int32_t r = 0; r < ranks; ++r) exact += awkward(Rank(r), numel).to(at::kDouble);
      EXPECT_LT((sums[0].to(at::kDouble) - exact).abs().max().item<double>(), 1e-4);
      for (const at::Tensor& sum : sums) {
        EXPECT_EQ(std::memcmp(sum.const_data_ptr(), sums[0].const_data_ptr(), sum.nbytes()), 0)
            << ranks << " ranks, " << numel << " elements";
      }
    }
  }
}

TEST(Communicator, GroupsOverSubsetsDoNotHearEachOther) {
  run_ranks(4, [](Communicator& communicator) {
    const std::int32_t rank = communicator.rank().value;
    // Rows {0, 1}, {2, 3}; columns {0, 2}, {1, 3}; each rank alone.
    const std::int32_t row = rank / 2, column = rank % 2;
    const Group rows = communicator.make_group({Rank(2 * row), Rank(2 * row + 1)});
    const Group columns = communicator.make_group({Rank(column), Rank(column + 2)});
    const Group alone = communicator.make_group({Rank(rank)});
    const at::Tensor of_row = at::full({3}, 1.0 + rank);
    const at::Tensor of_column = of_row.clone();
    const at::Tensor own = of_row.clone();
    const auto first = communicator.all_reduce(of_column, columns);
    const auto second = communicator.all_reduce(of_row, rows);
    communicator.all_reduce(own, alone)->wait();
    second->wait();
    first->wait();
    EXPECT_EQ(of_row[0].item<double>(), 2 + 2 * (2 * row) + 1);
    EXPECT_EQ(of_column[0].item<double>(), 2 + column + (column + 2));
    EXPECT_EQ(own[0].item<double>(), 1 + rank);
  });
}

TEST(Communicator, BroadcastGivesTheRootsValueWhoeverIsRoot) {
  run_ranks(3, [](Communicator& communicator) {
    const Group group = communicator.make_group({Rank(2), Rank(0), Rank(1)});
    const std::int32_t ranks_by_place[] = {2, 0, 1};
    for (std::int32_t root = 0; root < 3; ++root) {
      const at::Tensor value = at::full({4}, 10.0 + communicator.rank().value);
      communicator.broadcast(value, group, root)->wait();
      EXPECT_TRUE(at::equal(value, at::full({4}, 10.0 + ranks_by_place[root])));
    }
  });
}

TEST_P(Messages, ManyRanksLinkInAnyOrder) {
  constexpr std::int32_t kRanks = 8;
  run(kRanks, [](Communicator& communicator) {
    const std::int32_t rank = communicator.rank().value;
    std::vector<Rank> peers;
    for (std::int32_t i = 0; i < kRanks; ++i) {
      peers.emplace_back((rank % 2 == 0 ? i : kRanks - 1 - i + rank) % kRanks);
    }
    communicator.link(peers);
    communicator.link({Rank((rank + 1) % kRanks)});  // There already.
    std::vector<std::unique_ptr<Transfer>> transfers;
    std::vector<at::Tensor> received;
    for (std::int32_t other = 0; other < kRanks; ++other) {
      received.push_back(at::full({1}, rank));
      if (other == rank) continue;
      transfers.push_back(communicator.send(at::full({1}, rank), Rank(other), 0));
      transfers.push_back(communicator.receive(received.back(), Rank(other), 0));
    }
    for (auto& transfer : transfers) transfer->wait();
    for (std::int32_t other = 0; other < kRanks; ++other) {
      EXPECT_EQ(received[static_cast<std::size_t>(other)].item<std::int32_t>(), other);
    }
  });
}

TEST(Communicator, ExchangeBringsEveryRanksTextAndItsNameMayRepeat) {
  run_ranks(3, [](Communicator& communicator) {
    for (int round = 0; round < 3; ++round) {
      const auto texts = communicator.exchange("facts", str(round, " of ", communicator.rank()));
      EXPECT_EQ(texts, (std::vector<std::string>{str(round, " of 0"), str(round, " of 1"),
                                                 str(round, " of 2")}));
    }
  });
}

TEST(Communicator, BarrierHoldsEveryRankUntilTheLastEachTime) {
  std::atomic<int> arrived{0};
  run_ranks(3, [&](Communicator& communicator) {
    for (int round = 1; round <= 3; ++round) {
      if (communicator.rank().value == 2) std::this_thread::sleep_for(milliseconds(30));
      ++arrived;
      communicator.barrier("same name");
      EXPECT_GE(arrived.load(), 3 * round);
      communicator.barrier("and another");
    }
  });
}

TEST_P(Messages, AnInterruptEndsWaitsOfMessagesAndCollectivesWithItsReason) {
  std::latch done(2);
  run(2, [&](Communicator& communicator) {
    communicator.link({Rank(0), Rank(1)});
    const Group group = communicator.make_group({Rank(0), Rank(1)});
    if (communicator.rank().value == 0) {
      std::thread other([&] {
        std::this_thread::sleep_for(milliseconds(50));
        communicator.interrupt("rank 1 failed: out of luck");
      });
      const at::Tensor six = at::zeros({6});
      const CommError message = failure_of([&] { communicator.receive(six, Rank(1), 1)->wait(); });
      other.join();
      const CommError later = failure_of([&] { communicator.receive(six, Rank(1), 2)->wait(); });
      EXPECT_STREQ(message.what(), "rank 1 failed: out of luck");
      EXPECT_STREQ(later.what(), message.what());
    } else {
      std::thread other([&] {
        std::this_thread::sleep_for(milliseconds(50));
        communicator.interrupt("enough");
      });
      const CommError collective =
          failure_of([&] { communicator.all_reduce(at::zeros({6}), group)->wait(); });
      other.join();
      EXPECT_STREQ(collective.what(), "enough");
    }
    done.arrive_and_wait();
  });
}

class CheckedMessages : public Messages {};
INSTANTIATE_TEST_SUITE_P(Tcp, CheckedMessages, testing::Values(Transport::Tcp));
INSTANTIATE_TEST_SUITE_P(Shm, CheckedMessages, testing::Values(Transport::Shm));

TEST_P(CheckedMessages, AMessageOfAnotherSizeIsAnErrorWithBothSizes) {
  run(2, [](Communicator& communicator) {
    communicator.link({Rank(0), Rank(1)});
    if (communicator.rank().value == 0) {
      communicator.send(at::zeros({8}), Rank(1), 3)->wait();
    } else {
      const CommError error =
          failure_of([&] { communicator.receive(at::zeros({4}), Rank(0), 3)->wait(); });
      expect_contains(error.message(), {"receive from rank 0", "tag 3", "16 bytes", "32 bytes"});
    }
    communicator.barrier("end");
  });
}

TEST_P(CheckedMessages, ATransferTellsWithoutAWaitWhetherItIsOver) {
  run(2, [](Communicator& communicator) {
    communicator.link({Rank(0), Rank(1)});
    const at::Tensor value = at::full({3}, communicator.rank().value);
    if (communicator.rank().value == 0) {
      const auto receive = communicator.receive(value, Rank(1), 5);
      EXPECT_FALSE(receive->is_over());
      communicator.put("asked", "");
      while (!receive->is_over()) std::this_thread::yield();
      receive->wait();
      EXPECT_TRUE(at::equal(value, at::full({3}, 1)));
    } else {
      communicator.get("asked");
      communicator.send(value, Rank(0), 5)->wait();
    }
  });
}

TEST_P(CheckedMessages, MoreMessagesThanARingHoldsBothWaysAtOnce) {
  run(2, [](Communicator& communicator) {
    constexpr std::int32_t kMessages = 10000;
    const Rank peer(1 - communicator.rank().value);
    communicator.link({peer});
    std::vector<std::unique_ptr<Transfer>> sends;
    for (std::int32_t i = 0; i < kMessages; ++i) {
      sends.push_back(communicator.send(at::full({1}, i, at::kLong), peer, i));
    }
    const at::Tensor value = at::zeros({1}, at::kLong);
    for (std::int32_t i = kMessages; i-- > 0;) {
      communicator.receive(value, peer, i)->wait();
      ASSERT_EQ(value.item<std::int64_t>(), i);
    }
    for (auto& send : sends) send->wait();
    communicator.barrier("end");
  });
}

TEST_P(Messages, AFailureIsToldToEveryRankLinkedOrNot) {
  std::array<std::string, 4> heard;
  std::latch linked(4);
  EXPECT_THROW(run(4,
                   [&](Communicator& communicator) {
                     const Rank rank = communicator.rank();
                     const Rank neighbour(rank.value ^ 1);
                     communicator.link({neighbour});
                     linked.arrive_and_wait();
                     if (rank.value == 2) throw std::runtime_error("rank 2 has no more paper");
                     const auto start = std::chrono::steady_clock::now();
                     const CommError error = failure_of(
                         [&] { communicator.receive(at::zeros({2}), neighbour, 0)->wait(); });
                     heard[rank.index()] = error.what();
                     EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
                     throw error;
                   }),
               std::runtime_error);
  for (const int rank : {0, 1, 3}) {
    EXPECT_EQ(heard[static_cast<std::size_t>(rank)], "rank 2 failed: rank 2 has no more paper");
  }
}

TEST_P(Messages, AReceiveThatNeverComesNamesPeerTagBytesAndDeadline) {
  run(2, [](Communicator& communicator) {
    communicator.link({Rank(0), Rank(1)});
    if (communicator.rank().value == 0) {
      communicator.set_deadline(milliseconds(200));
      EXPECT_EQ(communicator.deadline(), milliseconds(200));
      const auto start = std::chrono::steady_clock::now();
      const CommError error =
          failure_of([&] { communicator.receive(at::zeros({6}), Rank(1), 4711)->wait(); });
      const auto waited = std::chrono::steady_clock::now() - start;
      expect_contains(error.message(), {"receive from rank 1", "tag 4711", "24 bytes"});
      expect_contains(error.what(), {"200 ms"});
      EXPECT_EQ(error.exit_code(), ExitCode::PeerLost);
      EXPECT_GE(waited, milliseconds(190));
      EXPECT_LT(waited, milliseconds(2000));
    }
    communicator.barrier("waited");
  });
}

TEST(Deadline, AnAllReduceThatARankNeverJoinsNamesTheGroup) {
  run_ranks(2, [](Communicator& communicator) {
    const Group group = communicator.make_group({Rank(0), Rank(1)});
    if (communicator.rank().value == 0) {
      communicator.set_deadline(milliseconds(200));
      const CommError error =
          failure_of([&] { communicator.all_reduce(at::zeros({6}), group)->wait(); });
      expect_contains(error.what(), {"all-reduce over ranks 0, 1", "24 bytes", "200 ms"});
    }
    communicator.barrier("waited");
  });
}

TEST(Deadline, AKeyThatNobodyPutsIsNamed) {
  run_ranks(1, [](Communicator& communicator) {
    communicator.set_deadline(milliseconds(100));
    const CommError error = failure_of([&] { communicator.get("plans/of/none"); });
    expect_contains(error.what(), {"rank 0", "plans/of/none", "100 ms"});
    communicator.put("plans/of/none", std::string("a\0b", 3));
    EXPECT_EQ(communicator.get("plans/of/none"), std::string("a\0b", 3));
  });
}

TEST_P(Messages, APeerThatIsGoneEndsTheWaitAtOnceAndItsErrorIsTheFirst) {
  std::string heard;
  std::latch linked(2);
  const auto start = std::chrono::steady_clock::now();
  try {
    run(2, [&](Communicator& communicator) {
      communicator.link({Rank(0), Rank(1)});
      linked.arrive_and_wait();
      if (communicator.rank().value == 1) throw std::runtime_error("rank 1 had enough");
      const CommError error =
          failure_of([&] { communicator.receive(at::zeros({2}), Rank(1), 3)->wait(); });
      heard = error.message();
      throw error;
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "rank 1 had enough");
  }
  EXPECT_EQ(heard, "rank 1 failed: rank 1 had enough");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(RunRanks, ARankThatIsDoneDoesNotWaitForOneThatFailed) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(run_ranks(2,
                         [](Communicator& communicator) {
                           if (communicator.rank().value == 0) return;
                           std::this_thread::sleep_for(milliseconds(50));
                           throw ConfigError("bad");
                         }),
               ConfigError);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(CommunicatorDeathTest, SendingWithoutALinkIsABug) {
  EXPECT_DEATH(
      run_ranks(1,
                [](Communicator& communicator) { communicator.send(at::zeros({1}), Rank(7), 0); }),
      "rank 0 has no link to rank 7");
}

}  // namespace
}  // namespace penstock::comm
