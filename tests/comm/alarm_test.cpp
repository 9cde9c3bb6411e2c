#include "penstock/runtime/comm/alarm.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>

#include "penstock/runtime/comm/acceptor.h"

namespace penstock::comm {
namespace {

using namespace std::chrono_literals;

// A rank that hears alarms.
Acceptor hearing(const std::function<void(const std::string&)>& on_alarm) {
  return Acceptor("127.0.0.1", {.alarm = on_alarm, .link = [](Rank, FileDescriptor) {}});
}

TEST(Alarm, EveryoneHearsTheWholeText) {
  std::promise<std::string> first, second;
  const Acceptor one = hearing([&](const std::string& text) { first.set_value(text); });
  const Acceptor two = hearing([&](const std::string& text) { second.set_value(text); });
  const std::string text = "rank 3 failed:\n" + std::string(20000, 'x');
  raise_alarm({one.address(), two.address()}, Rank(3), text);
  auto heard = first.get_future();
  ASSERT_EQ(heard.wait_for(5s), std::future_status::ready);
  EXPECT_EQ(heard.get(), text);
  EXPECT_EQ(second.get_future().get(), text);
}

TEST(Alarm, WhoDoesNotSayTheWordIsNotHeard) {
  std::promise<std::string> heard;
  const Acceptor alarm = hearing([&](const std::string& text) { heard.set_value(text); });
  const std::string address = alarm.address();
  const std::string place = address.substr(0, address.rfind(' '));
  raise_alarm({place + " 00000000000000000000000000000000"}, Rank(1), "a stranger's");
  raise_alarm({address}, Rank(1), "a friend's");
  EXPECT_EQ(heard.get_future().get(), "a friend's");
}

TEST(Alarm, WhoIsGoneDoesNotHoldTheOthersUp) {
  std::promise<std::string> heard;
  const Acceptor alarm = hearing([&](const std::string& text) { heard.set_value(text); });
  std::string gone;
  {
    const Acceptor other = hearing([](const std::string&) {});
    gone = other.address();
  }
  const auto start = std::chrono::steady_clock::now();
  raise_alarm({gone, "no-such-host.invalid 1 x", alarm.address()}, Rank(1), "news");
  EXPECT_EQ(heard.get_future().get(), "news");
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
}

}  // namespace
}  // namespace penstock::comm
