#include "penstock/comm/alarm.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>

namespace penstock::comm {
namespace {

using namespace std::chrono_literals;

TEST(Alarm, EveryoneHearsTheWholeText) {
  std::promise<std::string> first, second;
  Alarm one("127.0.0.1", [&](const std::string& text) { first.set_value(text); });
  Alarm two("127.0.0.1", [&](const std::string& text) { second.set_value(text); });
  const std::string text = "rank 3 failed:\n" + std::string(20000, 'x');
  Alarm::raise({one.address(), two.address()}, text);
  auto heard = first.get_future();
  ASSERT_EQ(heard.wait_for(5s), std::future_status::ready);
  EXPECT_EQ(heard.get(), text);
  EXPECT_EQ(second.get_future().get(), text);
}

TEST(Alarm, WhoDoesNotSayTheWordIsNotHeard) {
  std::promise<std::string> heard;
  Alarm alarm("127.0.0.1", [&](const std::string& text) { heard.set_value(text); });
  const std::string address = alarm.address();
  const std::string place = address.substr(0, address.rfind(' '));
  Alarm::raise({place + " 00000000000000000000000000000000"}, "a stranger's");
  Alarm::raise({address}, "a friend's");
  EXPECT_EQ(heard.get_future().get(), "a friend's");
}

TEST(Alarm, WhoIsGoneDoesNotHoldTheOthersUp) {
  std::promise<std::string> heard;
  Alarm alarm("127.0.0.1", [&](const std::string& text) { heard.set_value(text); });
  std::string gone;
  {
    const Alarm other("127.0.0.1", [](const std::string&) {});
    gone = other.address();
  }
  const auto start = std::chrono::steady_clock::now();
  Alarm::raise({gone, "no-such-host.invalid 1 x", alarm.address()}, "news");
  EXPECT_EQ(heard.get_future().get(), "news");
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
}

}  // namespace
}  // namespace penstock::comm
