#include "penstock/runtime/comm/announced_link.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <array>
#include <exception>
#include <latch>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "penstock/core/error.h"
#include "penstock/runtime/comm/gloo/gloo.h"
#include "penstock/runtime/comm/host_copy.h"
#include "tests/comm/failure_of.h"
#include "tests/support/foreign_device.h"

namespace penstock::comm {
namespace {

using testing_support::device_under_test;

// A channel over Gloo: one tag, so messages come in order.
class GlooChannel : public Channel {
 public:
  explicit GlooChannel(std::shared_ptr<Link> link) : link_(std::move(link)) {}
  std::unique_ptr<Transfer> send(const at::Tensor& tensor) override {
    return through_host(tensor, Bytes::Out,
                        [&](const at::Tensor& host) { return link_->send(host, 0); });
  }
  std::unique_ptr<Transfer> receive(const at::Tensor& tensor, const c10::Event&) override {
    return through_host(tensor, Bytes::In,
                        [&](const at::Tensor& host) { return link_->receive(host, 0); });
  }

 private:
  std::shared_ptr<Link> link_;
};

// Both ends of a link of two ranks, each on a thread of its own; rethrows the first's error.
void run_pair(const std::function<void(Link& link, Rank rank)>& body,
              std::chrono::milliseconds deadline = std::chrono::seconds(30)) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::array<std::exception_ptr, 2> errors;
  const auto run = [&](std::int32_t r) {
    const Rank rank(r), peer(1 - r);
    WaitRules rules{.deadline = deadline, .connecting = std::chrono::seconds(30)};
    const auto connector = [&](const char* name) {
      return GlooConnector(c10::make_intrusive<c10d::PrefixStore>(name, store), rank, "127.0.0.1");
    };
    GlooConnector host = connector("host"), channel = connector("channel");
    const std::shared_ptr<Link> carrier = channel.link(peer, rules);
    const auto link = make_announced_link(
        host.link(peer, rules),
        {std::make_unique<GlooChannel>(carrier), std::make_unique<GlooChannel>(carrier)},
        device_under_test());
    try {
      body(*link, rank);
    } catch (...) {
      errors[rank.index()] = std::current_exception();
    }
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

at::Tensor there(double value, std::int64_t size = 5) {
  return at::full({size}, value).to(device_under_test());
}

bool holds(const at::Tensor& tensor, double value) {
  return at::equal(tensor.cpu(), at::full(tensor.sizes(), value));
}

TEST(AnnouncedLink, MessagesFindEachOtherByTagHoweverEarlyOrLateTheyArePosted) {
  run_pair([](Link& link, Rank) {
    constexpr std::int32_t kEarly = 8, kAll = 16;
    std::vector<at::Tensor> received(kAll);
    std::vector<std::unique_ptr<Transfer>> receives(kAll);
    const auto post = [&](std::int32_t tag) {
      received[static_cast<std::size_t>(tag)] = there(-1);
      receives[static_cast<std::size_t>(tag)] =
          link.receive(received[static_cast<std::size_t>(tag)], tag);
    };
    for (std::int32_t tag = 0; tag < kEarly; ++tag) post(tag);
    std::vector<std::unique_ptr<Transfer>> sends;
    for (std::int32_t i = 0; i < kAll; ++i) {
      const std::int32_t tag = (i * 7 + 3) % kAll;
      sends.push_back(link.send(there(tag), tag));
    }
    // The last to come takes all others that were sent before it, asked for or not.
    receives[0]->wait();
    for (std::int32_t tag = kAll; tag-- > kEarly;) post(tag);
    for (std::int32_t tag = kAll; tag-- > 0;) {
      receives[static_cast<std::size_t>(tag)]->wait();
      receives[static_cast<std::size_t>(tag)]->wait();  // Once more does nothing.
      EXPECT_TRUE(holds(received[static_cast<std::size_t>(tag)], tag)) << tag;
    }
    for (const auto& send : sends) send->wait();
  });
}

TEST(AnnouncedLink, MessagesWithOneTagComeInTheirOrder) {
  run_pair([](Link& link, Rank) {
    std::vector<std::unique_ptr<Transfer>> sends;
    for (int i = 0; i < 4; ++i) sends.push_back(link.send(there(i), 2));
    sends.push_back(link.send(there(9), 1));
    const at::Tensor last = there(-1), first = there(-1), second = there(-1);
    link.receive(last, 1)->wait();  // All of the others have been announced by then.
    const auto of_first = link.receive(first, 2), of_second = link.receive(second, 2);
    of_second->wait();
    of_first->wait();
    EXPECT_TRUE(holds(first, 0) && holds(second, 1) && holds(last, 9));
    for (const auto& send : sends) send->wait();
  });
}

TEST(AnnouncedLink, HostMemoryAndEveryTypeAndShapeGoToo) {
  run_pair([](Link& link, Rank) {
    const at::Tensor host = at::arange(6, at::kDouble),
                     grid = at::arange(6, at::kLong).view({2, 3});
    const auto a = link.send(host, 5), b = link.send(grid.to(device_under_test()), 5);
    const at::Tensor of_host = at::zeros_like(host);
    const at::Tensor of_grid = at::zeros_like(grid.to(device_under_test()));
    link.receive(of_host, 5)->wait();
    link.receive(of_grid, 5)->wait();
    EXPECT_TRUE(at::equal(of_host, host));
    EXPECT_TRUE(at::equal(of_grid.cpu(), grid));
    a->wait();
    b->wait();
  });
}

TEST(AnnouncedLink, SizesThatDifferAreAnError) {
  for (const bool early : {true, false}) {
    std::latch over(1);  // The sender's end stays until then.
    run_pair([&](Link& link, Rank rank) {
      if (rank == Rank(0)) {
        const auto message = link.send(there(1, 7), 3), marker = link.send(there(1), 4);
        return over.wait();
      }
      const at::Tensor mine = there(0, 5), marker = there(0);
      const CommError error = failure_of([&] {
        const auto receive = early ? link.receive(mine, 3) : nullptr;
        link.receive(marker, 4)->wait();
        link.receive(mine, 3)->wait();
      });
      EXPECT_EQ(error.message(), "the message with tag 3 has 28 bytes, its receiver has 20 for it");
      over.count_down();
    });
  }
}

TEST(AnnouncedLink, AWaitEndsAtTheDeadlineWithThePeersName) {
  std::latch over(1);
  run_pair(
      [&](Link& link, Rank rank) {
        if (rank == Rank(1)) return over.wait();
        const CommError error = failure_of([&] { link.receive(there(0), 3)->wait(); });
        expect_contains(error.message(), {"receive from rank 1"});
        over.count_down();
      },
      std::chrono::milliseconds(300));
}

}  // namespace
}  // namespace penstock::comm
