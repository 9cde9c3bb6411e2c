#include "penstock/runtime/comm/connect.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <latch>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "penstock/comm/communicator.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/launch/port.h"
#include "penstock/runtime/comm/interrupt.h"
#include "penstock/runtime/comm/interruptible_store.h"
#include "tests/comm/failure_of.h"
#include "tests/support/temporary_folder.h"

namespace penstock::comm {
namespace {

using std::chrono::milliseconds;

// Every rank of a run, as threads.
template <class Body>
void connect_all(const Rendezvous& rendezvous, std::vector<std::int32_t> ranks,
                 milliseconds deadline, const Body& body) {
  std::vector<std::thread> threads;
  for (const std::int32_t rank : ranks) {
    threads.emplace_back([&, rank] {
      Rendezvous mine = rendezvous;
      mine.rank = Rank(rank);
      body([&] { return connect(mine, deadline); });
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(Connect, RanksMeetOverAFile) {
  const testing_support::TemporaryFolder folder;
  const Rendezvous rendezvous{
      .kind = Rendezvous::Kind::File, .path = folder.file("meet"), .world_size = 2};
  std::atomic<int> sums{0};
  connect_all(rendezvous, {0, 1}, std::chrono::seconds(20), [&](const auto& connect_me) {
    const auto communicator = connect_me();
    const Group all = communicator->make_group({Rank(0), Rank(1)});
    const at::Tensor value = at::full({2}, 1 + communicator->rank().value);
    communicator->all_reduce(value, all)->wait();
    sums += value[0].item<int>();
    communicator->barrier("end");
  });
  EXPECT_EQ(sums.load(), 6);
}

TEST(Connect, TwoRunsInOneStoreKeepApartByTheirPrefix) {
  const testing_support::TemporaryFolder folder;
  std::mutex mutex;
  std::vector<std::string> seen;
  for (const char* prefix : {"first", "second"}) {
    const Rendezvous rendezvous{.kind = Rendezvous::Kind::File,
                                .path = folder.file("meet"),
                                .prefix = prefix,
                                .world_size = 2};
    connect_all(rendezvous, {0, 1}, std::chrono::seconds(20), [&](const auto& connect_me) {
      const auto communicator = connect_me();
      if (communicator->rank().value == 0) communicator->put("who", prefix);
      const std::string who = communicator->get("who");
      communicator->barrier("end");
      const std::lock_guard lock(mutex);
      seen.push_back(who);
    });
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"first", "first", "second", "second"}));
}

// Rank 1 fails while rank 0 waits for what is never put, and before it asks rank 1 for a group.
void expect_a_failure_ends_waits_in_the_store(const Rendezvous& rendezvous) {
  std::latch done(2);
  connect_all(rendezvous, {0, 1}, std::chrono::seconds(60), [&](const auto& connect_me) {
    const auto communicator = connect_me();
    if (communicator->rank().value == 1) {
      std::this_thread::sleep_for(milliseconds(300));
      communicator->fail("rank 1 has no more paper");
    } else {
      const auto start = std::chrono::steady_clock::now();
      const std::string heard = failure_of([&] { communicator->get("paper"); }).what();
      EXPECT_EQ(heard, "rank 1 has no more paper");
      const auto group = [&] { communicator->make_group({Rank(0), Rank(1)}); };
      EXPECT_EQ(failure_of(group).what(), heard);
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
    }
    done.arrive_and_wait();
  });
}

TEST(Connect, AFailureEndsWaitsInAFile) {
  const testing_support::TemporaryFolder folder;
  expect_a_failure_ends_waits_in_the_store(
      {.kind = Rendezvous::Kind::File, .path = folder.file("meet"), .world_size = 2});
}

TEST(Connect, AFailureEndsWaitsAtAServer) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  const auto server = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  expect_a_failure_ends_waits_in_the_store(
      {.kind = Rendezvous::Kind::Client, .port = server->getPort(), .world_size = 2});
}

// The process that holds the store is there, and does nothing.
TEST(Connect, AStoreThatStopsEndsWaitsAtTheirDeadline) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const pid_t holder = ::fork();
  ASSERT_GE(holder, 0);
  if (holder == 0) {
    c10d::TCPStoreOptions options;
    options.port = 0;
    options.isServer = true;
    const auto server = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    const std::uint16_t port = server->getPort();
    if (::write(pipe[1], &port, sizeof port) != sizeof port) ::_exit(1);
    ::pause();
    ::_exit(0);
  }
  std::uint16_t port = 0;
  ASSERT_EQ(::read(pipe[0], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  const auto communicator = connect(
      {.kind = Rendezvous::Kind::Client, .port = port, .world_size = 1}, std::chrono::seconds(20));
  communicator->put("paper", "white");
  EXPECT_EQ(communicator->get("paper"), "white");
  communicator->set_deadline(milliseconds(500));
  ::kill(holder, SIGSTOP);
  expect_contains(failure_of([&] { communicator->get("ink"); }).message(), {"\"ink\""});
  expect_contains(failure_of([&] { communicator->get("paper"); }).message(), {"\"paper\""});
  ::kill(holder, SIGKILL);
  ::waitpid(holder, nullptr, 0);
}

// Stops its process for six seconds before it answers.
class StoppingStore : public c10d::HashStore {
 public:
  std::vector<std::uint8_t> get(const std::string& key) override {
    const pid_t self = ::getpid();
    const pid_t waker = ::fork();
    if (waker == 0) {
      ::sleep(6);
      ::kill(self, SIGCONT);
      ::_exit(0);
    }
    ::kill(self, SIGSTOP);
    ::waitpid(waker, nullptr, 0);
    return HashStore::get(key);
  }
};

TEST(Connect, AProcessThatWasStoppedMissesNoAnswer) {
  const auto stopping = c10::make_intrusive<StoppingStore>();
  const auto never = std::make_shared<Interrupt>();
  InterruptibleStore store(stopping, never);
  const std::vector<std::uint8_t> white = {'w'};
  store.set("paper", white);
  EXPECT_EQ(store.get("paper"), white);
}

TEST(Connect, RanksThatDoNotComeAreNamed) {
  const testing_support::TemporaryFolder folder;
  const Rendezvous rendezvous{
      .kind = Rendezvous::Kind::File, .path = folder.file("meet"), .world_size = 4};
  std::mutex mutex;
  connect_all(rendezvous, {0, 2}, milliseconds(500), [&](const auto& connect_me) {
    const CommError error = failure_of(connect_me);
    const std::lock_guard lock(mutex);
    expect_contains(error.message(), {"ranks 1, 3 of 4", "meet"});
  });
}

// Rank 1 of two at a port, where rank 0 says its first word within half a second.
CommError failure_at(std::uint16_t port, const std::string& host = "127.0.0.1") {
  return failure_of([&] {
    connect({.kind = Rendezvous::Kind::Client,
             .host = host,
             .port = port,
             .rank = Rank(1),
             .world_size = 2},
            std::chrono::seconds(20), milliseconds(500));
  });
}

TEST(Connect, AProgramThatIsSilentIsNoStore) {
  const auto listening = launch::listen_on("127.0.0.1", 0);
  const auto begun = std::chrono::steady_clock::now();
  expect_contains(failure_at(listening.number).message(),
                  {"rank 1", str(listening.number), "another program"});
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(10));
}

TEST(Connect, AStoreWithoutRankZeroIsAnothersStore) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  const auto server = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  expect_contains(failure_at(server->getPort()).message(),
                  {"rank 1", str(server->getPort()), "rank 0 of this run has said nothing"});
}

TEST(Connect, ARunOfAnotherSizeIsAnotherRun) {
  auto listening = launch::listen_on("127.0.0.1", 0);
  const std::uint16_t port = listening.number;
  std::thread rank_0([&] {
    const CommError lacks = failure_of([&] {
      connect({.kind = Rendezvous::Kind::Server,
               .port = port,
               .socket = listening.socket.release(),
               .world_size = 3},
              std::chrono::seconds(3));
    });
    expect_contains(lacks.message(), {"ranks 1, 2 of 3"});
  });
  expect_contains(failure_at(port).message(), {"rank 1 of 2", "a run of 3 ranks"});
  rank_0.join();
}

TEST(Connect, AHostThatNobodyKnowsIsToldAtOnce) {
  const auto begun = std::chrono::steady_clock::now();
  const CommError error = failure_at(29500, "no-such-host.invalid");
  EXPECT_EQ(error.exit_code(), ExitCode::Usage);
  expect_contains(error.message(), {"no host \"no-such-host.invalid\" is known"});
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(8));
}

TEST(Connect, AStoreThatIsNotThereIsNamed) {
  const CommError error = failure_of([] {
    connect({.kind = Rendezvous::Kind::Client, .port = 1, .rank = Rank(1), .world_size = 2},
            milliseconds(500));
  });
  expect_contains(error.message(), {"rank 1", "127.0.0.1:1"});
}

}  // namespace
}  // namespace penstock::comm
