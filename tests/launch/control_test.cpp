// The rank's side of the channel, with the test as the launcher.
#include "penstock/launch/control.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <thread>

#include "penstock/core/file_descriptor.h"
#include "penstock/core/text.h"

namespace penstock::launch {
namespace {

class Control : public testing::Test {
 protected:
  Control() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    launcher.reset(ends[0]);
    rank.reset(ends[1]);
  }

  ControlClient client() const {
    return ControlClient::from_environment([this](const std::string& name) {
      if (name == "PENSTOCK_CONTROL_FD") return std::optional(str(rank.get()));
      return std::optional<std::string>("0.1");  // Heartbeat: a message every 20 ms.
    });
  }

  // The next message within 2 s; "" when there is none.
  std::string hear() const {
    pollfd ready{launcher.get(), POLLIN, 0};
    if (::poll(&ready, 1, 2000) != 1) return "";
    char buffer[kMessageBytesMax];
    const ssize_t size = ::recv(launcher.get(), buffer, sizeof buffer, 0);
    return std::string(buffer, static_cast<std::size_t>(std::max<ssize_t>(0, size)));
  }
  std::string hear_until(const std::string& part) const {
    for (;;) {
      const std::string line = hear();
      if (line.empty() || line.find(part) != std::string::npos) return line;
    }
  }
  void tell(const LauncherMessage& message) const {
    const std::string line = encode(message);
    ::send(launcher.get(), line.data(), line.size(), 0);
  }

  FileDescriptor launcher;
  FileDescriptor rank;
};

TEST_F(Control, WithoutALauncherNothingHappens) {
  const VariableLookup none = [](const std::string&) { return std::nullopt; };
  ControlClient client = ControlClient::from_environment(none);
  EXPECT_FALSE(client.connected());
  client.set_phase("x");
  client.set_progress([] { return ProgressReport{}; });
  client.report_error({});
  client.report_done();
  EXPECT_EQ(client.stop_requested(), std::nullopt);
}

TEST_F(Control, ADescriptorThatIsNoChannelIsIgnored) {
  for (const char* fd : {"", "x", "-1", "987654", "1"}) {
    const VariableLookup variable = [&](const std::string&) {
      return std::optional<std::string>(fd);
    };
    EXPECT_FALSE(ControlClient::from_environment(variable).connected()) << fd;
  }
}

TEST_F(Control, HelloPhasesProgressDoneBye) {
  {
    ControlClient control = client();
    ASSERT_TRUE(control.connected());
    EXPECT_EQ(hear(), "hello");
    EXPECT_EQ(hear_until("starting"), "progress\t0\t-\tstarting\t\tworking\t-\t0\t-");
    control.set_phase("connecting");
    EXPECT_EQ(hear_until("connecting"), "progress\t1\t-\tconnecting\t\tworking\t-\t0\t-");
    control.set_progress([] { return ProgressReport{.counter = 9, .step = 2, .doing = "0F1"}; });
    EXPECT_EQ(hear_until("0F1"), "progress\t9\t2\t\t0F1\tworking\t-\t0\t-");
    control.report_done();
    EXPECT_EQ(hear_until("done"), "done");
  }
  EXPECT_EQ(hear_until("bye"), "bye");
}

TEST_F(Control, AProgramTakesStopsFromWhenItAsks) {
  ControlClient control({.fd = rank.get(), .heartbeat_seconds = 0.1, .takes_stop = false});
  EXPECT_EQ(hear(), "hello, stopped by signals");
  control.take_stops();
  EXPECT_EQ(hear_until("hello"), "hello");
}

TEST_F(Control, OneClientAtATimeHasTheChannel) {
  {
    const ControlClient first = client();
    EXPECT_TRUE(first.connected());
    EXPECT_FALSE(client().connected());
    EXPECT_EQ(::fcntl(rank.get(), F_GETFD), FD_CLOEXEC);  // Not for the rank's children.
  }
  EXPECT_TRUE(client().connected());
}

TEST_F(Control, AnErrorArrivesAsItWasWritten) {
  ControlClient control = client();
  const ErrorReport report{
      .step = 3, .instruction = "1B0", .message = "a\n  note: b", .exit_code = ExitCode::Numerics};
  control.report_error(report);
  EXPECT_EQ(parse_rank_message(hear_until("error")), RankMessage(report));
}

TEST_F(Control, AStopIsAFlagWithTheCodeToExitWith) {
  const ControlClient control = client();
  EXPECT_EQ(control.stop_requested(), std::nullopt);
  ::send(launcher.get(), "nonsense", 8, 0);
  tell(Stop{ExitCode::Preempted});
  for (int i = 0; i < 200 && !control.stop_requested(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(control.stop_requested(), ExitCode::Preempted);
}

TEST_F(Control, ACallbackThatThrowsIsNoSilence) {
  ControlClient control = client();
  control.set_progress([]() -> ProgressReport { throw 1; });
  EXPECT_NE(hear_until("callback failed"), "");
}

TEST_F(Control, ALauncherThatReadsNothingBlocksNobody) {
  ControlClient control = client();
  control.set_progress([] { return ProgressReport{.phase = std::string(4000, 'x')}; });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  std::string filler(4000, 'x');
  while (::send(rank.get(), filler.data(), filler.size(), MSG_DONTWAIT) > 0) {
  }
  control.report_done();  // Returns.
}

using ControlDeathTest = Control;

TEST_F(ControlDeathTest, AnAbortOrALostLauncherEndsTheRankWithoutAWord) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const ControlClient control = client();
        tell(Abort{"rank 2 was killed"});
        std::this_thread::sleep_for(std::chrono::seconds(5));
      },
      testing::ExitedWithCode(4), "^$");
  EXPECT_EXIT(
      {
        const ControlClient control = client();
        launcher.reset();
        std::this_thread::sleep_for(std::chrono::seconds(5));
      },
      testing::ExitedWithCode(4), "^$");
}

}  // namespace
}  // namespace penstock::launch
