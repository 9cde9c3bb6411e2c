#include "penstock/launch/control_message.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace penstock::launch {
namespace {

ProgressReport some_progress() {
  return {.counter = 120,
          .step = 12,
          .phase = "training",
          .doing = "1RECV_B3",
          .waiting = true,
          .waiting_for = Rank(1),
          .waiting_ms = 2800,
          .uses_files = true};
}

ErrorReport some_error() {
  return {.step = 12,
          .instruction = "1B3",
          .message = "loss is nan\n  note: tab\there, back\\slash, \xC3\xA9",
          .exit_code = ExitCode::Numerics};
}

TEST(ControlMessage, ParseIsTheInverseOfEncode) {
  const std::vector<RankMessage> messages{
      Hello{},      Hello{.takes_stop = false}, Done{},       Bye{}, Gone{}, some_progress(),
      some_error(), ProgressReport{},           ErrorReport{}};
  for (const RankMessage& message : messages) {
    EXPECT_EQ(parse_rank_message(encode(message)), message) << encode(message);
  }
  const std::vector<LauncherMessage> orders{Abort{"rank 2 was killed\n by SIGKILL"}, Abort{},
                                            Stop{ExitCode::Interrupted}, Stop{ExitCode::Preempted}};
  for (const LauncherMessage& order : orders) {
    EXPECT_EQ(parse_launcher_message(encode(order)), order) << encode(order);
  }
}

TEST(ControlMessage, TextForm) {
  EXPECT_EQ(encode(RankMessage(some_progress())),
            "progress\t120\t12\ttraining\t1RECV_B3\twaiting\t1\t2800\tfiles");
  EXPECT_EQ(encode(RankMessage(ProgressReport{})), "progress\t0\t-\t\t\tworking\t-\t0\t-");
}

TEST(ControlMessage, ALongTextIsCutBetweenCharacters) {
  ErrorReport report = some_error();
  report.message.clear();
  while (report.message.size() < 3 * kTextBytesMax) report.message += "\xC3\xA9";
  const std::string line = encode(RankMessage(report));
  EXPECT_LE(line.size(), kMessageBytesMax);
  const auto parsed = std::get<ErrorReport>(parse_rank_message(line).value());
  EXPECT_LE(parsed.message.size(), kTextBytesMax);
  EXPECT_EQ(parsed.message.size() % 2, 1u);  // Whole two-byte characters and three dots.
  EXPECT_TRUE(parsed.message.ends_with("\xC3\xA9..."));
}

TEST(ControlMessage, TheWorstTextFitsAPacket) {
  const std::string worst(2 * kTextBytesMax, '\\');
  EXPECT_LE(encode(RankMessage(ErrorReport{.instruction = worst, .message = worst})).size(),
            kMessageBytesMax);
}

TEST(ControlMessage, NumbersWithoutMeaningDoNotSpoilAReport) {
  ProgressReport report = some_progress();
  report.step = -1;
  report.waiting_ms = -5;
  report.waiting_for = Rank(-1);
  const auto parsed =
      std::get<ProgressReport>(parse_rank_message(encode(RankMessage(report))).value());
  EXPECT_EQ(parsed.step, std::nullopt);
  EXPECT_EQ(parsed.waiting_for, std::nullopt);
  EXPECT_EQ(parsed.waiting_ms, 0);
}

TEST(ControlMessage, AnythingElseIsNothing) {
  const std::vector<std::string> lines{"",
                                       "hello ",
                                       "hello\t",
                                       "HELLO",
                                       "done\t1",
                                       "progress",
                                       "progress\t1",
                                       "progress\t-1\t-\t\t\tworking\t-\t0\t-",
                                       "progress\t1\t-\t\t\tresting\t-\t0\t-",
                                       "progress\t1\t-\t\t\tworking\t-\t0\t-\t",
                                       "progress\t1\t-\t\\x\t\tworking\t-\t0\t-",
                                       "progress\t1\t-\t\\\t\tworking\t-\t0\t-",
                                       "progress\t1\t-\ta\nb\t\tworking\t-\t0\t-",
                                       "progress\t99999999999999999999\t-\t\t\tworking\t-\t0\t-",
                                       "progress\t1\t-\t\t\tworking\t4294967296\t0\t-",
                                       "progress\t1\t-\t\t\tworking\t-\t0",
                                       "progress\t1\t-\t\t\tworking\t-\t0\tdisk",
                                       "error\t-\t\tx\t0",
                                       "error\t-\t\tx\t256",
                                       "error\t-\t\tx",
                                       std::string("hello\0", 6),
                                       std::string(kMessageBytesMax + 1, 'x')};
  for (const std::string& line : lines) EXPECT_FALSE(parse_rank_message(line)) << line;
  for (const char* line : {"", "stop", "stop\tnow", "abort", "abort\ta\tb", "hello"}) {
    EXPECT_FALSE(parse_launcher_message(line)) << line;
  }
}

TEST(ControlMessage, MutatedMessagesNeverReadAsSomethingElse) {
  std::mt19937 random(7);
  const std::string line = encode(RankMessage(some_error()));
  for (int i = 0; i < 20000; ++i) {
    std::string mutated = line;
    for (int j = 0; j < 3; ++j) mutated[random() % mutated.size()] = static_cast<char>(random());
    const auto parsed = parse_rank_message(mutated);
    if (parsed) {
      EXPECT_EQ(parse_rank_message(encode(*parsed)), parsed);
    }
  }
}

TEST(ControlMessage, PrintableCannotDriveATerminal) {
  EXPECT_EQ(printable("a\x1B[2Jb\x7F\r\n\tc"), "a?[2Jb??\n\tc");
}

}  // namespace
}  // namespace penstock::launch
