// Channels of comm/nccl/ on the stand-in device, whose streams are late: foreign_nccl.cpp.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <gtest/gtest.h>

#include "penstock/core/error.h"
#include "penstock/runtime/comm/connect.h"
#include "tests/support/foreign_device.h"
#include "tests/support/foreign_streams.h"

namespace penstock::comm {
namespace {

using testing_support::kForeign;
using testing_support::LateStreams;
namespace foreign = testing_support::foreign;

// Rank 1 computes only when rank 0 has seen that its message was received.
TEST(Nccl, WhatComesIsWrittenBesideWhatWasGivenAfterItsReceiveWasPosted) {
  if (!testing_support::has_foreign_nccl()) GTEST_SKIP() << "torch has an NCCL of its own";
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const LateStreams late({.seed = seed, .hangs_after = std::chrono::seconds(5)});
    const foreign::WirePtr wire = foreign::new_wire();
    run_ranks_on(
        kForeign, 2,
        [&](Communicator& communicator) {
          const int index = communicator.rank().value;
          const c10::Device device(kForeign, static_cast<c10::DeviceIndex>(index));
          const c10::DeviceGuard here(device);
          communicator.link(communicator.all_ranks());
          EXPECT_EQ(communicator.transports(), "NCCL 2.99.0, shared memory");
          foreign::Stream& beside = foreign::stream(index, foreign::new_stream_id());
          if (index == 0) {
            const at::Tensor sent = at::full({5}, 7.0, at::TensorOptions().device(device));
            communicator.send(sent, Rank(1), 3)->wait();
            foreign::await(foreign::stream(index, 0));
            foreign::send(beside, wire, nullptr, 0);
          } else {
            const at::Tensor received = at::zeros({5}, at::TensorOptions().device(device));
            const auto transfer = communicator.receive(received, Rank(0), 3);
            foreign::receive(beside, wire, nullptr, 0);
            foreign::await_in_stream(foreign::stream(index, 0), foreign::mark(beside));
            transfer->wait();
            EXPECT_TRUE(at::equal(received.cpu(), at::full({5}, 7.0)));
          }
        },
        std::chrono::seconds(30));
  }
}

// Sends a peer five numbers of a device, and expects those that it sends.
void swap(Communicator& communicator, c10::Device device, Rank peer, double mine, double theirs) {
  const at::Tensor sent = at::full({5}, mine, at::TensorOptions().device(device));
  const at::Tensor received = at::zeros({5}, sent.options());
  const auto transfer = communicator.receive(received, peer, 3);
  communicator.send(sent, peer, 3)->wait();
  transfer->wait();
  EXPECT_TRUE(at::equal(received.cpu(), at::full({5}, theirs)));
}

// What a group sums goes through host memory: between all ranks of a large run, communicators of
// NCCL's would take most of a device.
TEST(Nccl, ConnectsRanksThatAreLinkedAndNotThoseOfAGroupAlone) {
  if (!testing_support::has_foreign_nccl()) GTEST_SKIP() << "torch has an NCCL of its own";
  const LateStreams late({.seed = 1, .hangs_after = std::chrono::seconds(5)});
  run_ranks_on(
      kForeign, 2,
      [&](Communicator& communicator) {
        const int index = communicator.rank().value;
        const c10::Device device(kForeign, static_cast<c10::DeviceIndex>(index));
        const c10::DeviceGuard here(device);
        const Group both = communicator.make_group(communicator.all_ranks());
        const at::Tensor one = at::full({3}, 1.0);
        communicator.all_reduce(one, both)->wait();
        EXPECT_EQ(communicator.transports(), "shared memory");
        communicator.link(communicator.all_ranks(), Peers::Group);
        EXPECT_EQ(communicator.transports(), "NCCL 2.99.0, shared memory");
        communicator.all_reduce(one, both)->wait();
        EXPECT_TRUE(at::equal(one, at::full({3}, 4.0)));
        swap(communicator, device, Rank(1 - index), 7.0 + index, 8.0 - index);
      },
      std::chrono::seconds(30));
}

// Of four ranks, three are a group; the two ends of a link are connected anew as they were.
TEST(Nccl, RanksBeginAnewWithTheLinksThatTheyHad) {
  if (!testing_support::has_foreign_nccl()) GTEST_SKIP() << "torch has an NCCL of its own";
  const LateStreams late({.seed = 1, .hangs_after = std::chrono::seconds(5)});
  run_ranks_on(
      kForeign, 4,
      [&](Communicator& communicator) {
        const Rank own = communicator.rank();
        const c10::Device device(kForeign, static_cast<c10::DeviceIndex>(own.value));
        const c10::DeviceGuard here(device);
        communicator.begin_call("one");
        const Group all = communicator.make_group(communicator.all_ranks());
        const std::vector<Rank> three = {Rank(0), Rank(1), Rank(2)};
        if (own.value < 3) communicator.link(three, Peers::Group);
        communicator.link({Rank(own.value ^ 1)});
        const auto check = [&] {
          const at::Tensor one = at::full({3}, 1.0);
          communicator.all_reduce(one, all)->wait();
          EXPECT_TRUE(at::equal(one, at::full({3}, 4.0)));
          for (const Rank peer : three) {
            if (own.value == 3 || peer == own) continue;
            swap(communicator, device, peer, own.value, peer.value);
          }
        };
        check();
        const auto failing = [&] {
          communicator.begin_call("two");
          if (own == Rank(3)) communicator.fail("rank 3 failed: on purpose");
          communicator.receive(at::zeros({1}), Rank(own.value ^ 1), 9)->wait();
        };
        EXPECT_THROW(failing(), CommError);
        communicator.begin_call("three");
        EXPECT_EQ(communicator.age(), 1);
        check();
      },
      std::chrono::seconds(30));
}

}  // namespace
}  // namespace penstock::comm
