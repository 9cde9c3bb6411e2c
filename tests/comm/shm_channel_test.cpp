#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <system_error>
#include <vector>

#include "penstock/runtime/comm/shm/channel.h"
#include "penstock/runtime/comm/shm/liveness.h"

namespace penstock::comm::shm {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

std::string text_of(Inbox& inbox, const Entry& entry) {
  std::string text(entry.bytes, '?');
  inbox.read(entry, text.data());
  return text;
}

TEST(ShmChannel, MessagesAreTakenInOrderAndReadInAny) {
  Outbox outbox;
  Inbox inbox(outbox.address());
  EXPECT_FALSE(inbox.take());
  for (const std::string text : {"one", "", "three"}) {
    ASSERT_TRUE(outbox.put(text.data(), text.size(), static_cast<std::int32_t>(text.size())));
  }
  const Entry one = inbox.take().value();
  const Entry empty = inbox.take().value();
  const Entry three = inbox.take().value();
  EXPECT_FALSE(inbox.take());
  EXPECT_EQ(three.tag, 5);
  EXPECT_EQ(text_of(inbox, three), "three");
  EXPECT_EQ(text_of(inbox, empty), "");
  EXPECT_EQ(text_of(inbox, one), "one");
}

TEST(ShmChannel, BlocksAreUsedAgainAndTheMemoryGrowsOnlyWithWhatIsInFlight) {
  Outbox outbox;
  Inbox inbox(outbox.address());
  const std::vector<char> message(std::size_t{1} << 20, 'x');
  std::uint64_t first_block = 0;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(outbox.put(message.data(), message.size(), i));
    const Entry entry = inbox.take().value();
    if (i == 0) first_block = entry.block;
    EXPECT_EQ(entry.block, first_block);
    EXPECT_EQ(text_of(inbox, entry), std::string(message.begin(), message.end()));
  }
}

TEST(ShmChannel, AFullRingRefusesUntilSomethingIsTaken) {
  Outbox outbox;
  Inbox inbox(outbox.address());
  std::int32_t sent = 0;
  while (outbox.put("", 0, sent)) ++sent;
  EXPECT_EQ(sent, 4096);
  EXPECT_EQ(inbox.take()->tag, 0);
  EXPECT_TRUE(outbox.put("", 0, sent));
  EXPECT_FALSE(outbox.put("", 0, sent));
}

TEST(ShmChannel, AnotherProcessIsWokenAndReadsWhatWasSentBeforeItsSendersEnd) {
  Outbox requests;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // Reads 100 messages, one of them large, sleeping for each; its exit code says how it went.  A
    // sleep that nobody ends lasts longer than the test may.
    alarm(30);
    Inbox inbox(requests.address());
    std::uint64_t bytes = 0;
    for (int i = 0; i < 100; ++i) {
      std::optional<Entry> entry;
      while (!(entry = inbox.take())) inbox.await(microseconds(0), milliseconds(60000));
      std::vector<char> text(entry->bytes);
      inbox.read(*entry, text.data());
      if (entry->tag != i || (!text.empty() && text.back() != 'e')) _exit(2);
      bytes += text.size();
    }
    _exit(bytes == 99 * 3 + (1 << 22) ? 0 : 1);
  }
  for (int i = 0; i < 100; ++i) {
    if (i % 10 == 0) usleep(2000);
    const std::string text = i == 57 ? std::string((1 << 22) - 1, '-') + "e" : "--e";
    ASSERT_TRUE(requests.put(text.data(), text.size(), i));
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(ShmChannel, AClosedBoxIsClosedOnceItIsEmpty) {
  auto outbox = std::make_unique<Outbox>();
  Inbox inbox(outbox->address());
  outbox->put("last", 4, 0);
  outbox.reset();
  EXPECT_FALSE(inbox.closed());
  EXPECT_EQ(text_of(inbox, inbox.take().value()), "last");
  EXPECT_TRUE(inbox.closed());
  inbox.await(microseconds(0), milliseconds(100000));  // Returns at once.
}

TEST(ShmChannel, WhatIsNotThereCannotBeOpened) {
  EXPECT_THROW(Inbox("/proc/self/fd/987654"), std::system_error);
}

TEST(ShmChannel, TheEndOfAProcessIsSeen) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    while (true) pause();
  }
  const Liveness liveness(child);
  EXPECT_TRUE(liveness.alive());
  kill(child, SIGKILL);
  siginfo_t ended;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(liveness.alive());  // A zombie is dead.
  waitpid(child, nullptr, 0);
}

TEST(ShmChannel, AHostHasOneIdentity) {
  EXPECT_NE(host_identity(), "");
  EXPECT_EQ(host_identity(), host_identity());
}

}  // namespace
}  // namespace penstock::comm::shm
