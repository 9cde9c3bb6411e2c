#include "penstock/plan/measure/recording.h"

#include <gtest/gtest.h>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/schedule/generators/generators.h"
#include "tests/support/message_of.h"
#include "tests/support/recordings.h"

namespace penstock::measure {
namespace {

using testing_support::message_of;

const std::string kSmall =
    "# penstock timeline 1\n"
    "# schedule 1f1b\n"
    "# ranks 2\n"
    "# rank 0 pipe 0 data 0 clock 18446744073709551615\n"
    "# rank 1 pipe 1 data 0 clock 8\n"
    "step,rank,action,start_ns,ready_ns,end_ns,bytes\n"
    "1,0,0F0,0,0,50,0\n"
    "1,0,0SEND_F0,50,50,60,128\n"
    "1,0,await 0SEND_F0,60,70,70,0\n"
    "1,0,finish,70,70,75,0\n"
    "2,0,0F0,80,80,90,0\n"
    "1,1,1F0,5,55,99,0\n"
    "# 6 events\n";

std::string with(const std::string& from, const std::string& to) {
  std::string text = kSmall;
  return text.replace(text.find(from), from.size(), to);
}

std::string refusal_of(const std::string& text) {
  return message_of([&] { parse_recording(text, "t.csv"); });
}

TEST(Recording, TextHoldsWhatRan) {
  const Recording recording = parse_recording(kSmall, "t.csv");
  EXPECT_EQ(recording.schedule, "1f1b");
  ASSERT_EQ(recording.ranks.size(), 2U);
  EXPECT_EQ(recording.ranks[1], (Place{.at = {.pipe = 1}, .clock = 8}));
  EXPECT_EQ(recording.events[1].bytes, 128);
  EXPECT_EQ(recording.events[2].what, What::AwaitSend);
  EXPECT_EQ(recording.events[3].what, What::Finish);
  EXPECT_EQ(recording.events[5].ready_ns, 55);
  EXPECT_EQ(to_text(recording), kSmall);
}

TEST(Recording, RanksThatShareLayersHaveAColumn) {
  std::string text = with("pipe 0 data 0", "pipe 0 data 0 tensor 0");
  text.replace(text.find("pipe 1 data 0"), 13, "pipe 0 data 0 tensor 1");
  const Recording recording = parse_recording(text, "t.csv");
  EXPECT_EQ(shape_of(recording), mesh::Shape{}.with(mesh::Axis::Tensor, 2));
  EXPECT_EQ(to_text(recording), text);
}

const std::string kExchanges =
    "# exchanges\n"
    "step,rank,start_ns,begun_ns,awaited_ns,end_ns,action,exchange\n"
    "1,0,5,6,20,25,0F0,the all-gather behind piece 0 of layer \"a, b\"\n"
    "1,0,10,12,12,30,0B0,the sum\n"
    "1,1,5,5,5,99,1F0,the sum\n"
    "# 6 events, 3 exchanges\n";

TEST(Recording, ExchangesHaveATableIfThereAreAny) {
  const std::string text = with("# 6 events\n", kExchanges);
  const Recording recording = parse_recording(text, "t.csv");
  EXPECT_EQ(to_text(recording), text);
  ASSERT_EQ(recording.exchanges.size(), 3U);
  EXPECT_EQ(recording.exchanges[0].name, "the all-gather behind piece 0 of layer \"a, b\"");
  EXPECT_EQ(recording.exchanges[0].awaited_ns, 20);
  EXPECT_EQ(recording.exchanges[1].action, schedule::parse_action("0B0"));
  EXPECT_EQ(exchanges_of(recording, Rank(0), 1).size(), 2U);
  EXPECT_EQ(exchanges_of(recording, Rank(1), 1).size(), 1U);
  EXPECT_TRUE(exchanges_of(recording, Rank(0), 2).empty());
}

TEST(Recording, ExchangesOfOlderFilesHaveNoAction) {
  std::string exchanges = kExchanges;
  for (const std::string part : {"action,", "0F0,", "0B0,", "1F0,"}) {
    exchanges.erase(exchanges.find(part), part.size());
  }
  const std::string text = with("# 6 events\n", exchanges);
  const Recording recording = parse_recording(text, "t.csv");
  EXPECT_EQ(to_text(recording), text);
  EXPECT_FALSE(recording.exchanges[0].action.has_value());
}

TEST(Recording, ErrorsOfExchangesNameTheLine) {
  const auto expect = [](const std::string& from, const std::string& to, const std::string& part) {
    std::string exchanges = kExchanges;
    exchanges.replace(exchanges.find(from), from.size(), to);
    const std::string message = refusal_of(with("# 6 events\n", exchanges));
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect("1,0,5,6", "1,0,6,5", "t.csv:15: expected a time not before the one ahead, found \"5\"");
  expect("99,1F0,the sum", "99,1F0,", "expected the name of an exchange");
  expect("99,1F0,the sum", "99,1F0",
         "t.csv:17: expected an action and the name of its exchange, found \"1F0\"");
  expect("99,1F0,the sum", "100,1F0,the sum",
         "expected an exchange within what rank 1 recorded of step 1");
  expect("1,1,5", "2,1,5", "expected an exchange within what rank 1 recorded of step 2");
  expect("30,0B0,the sum", "24,0B0,the sum", "expected the exchanges of a rank as they ended");
  expect("1,1,5", "1,0,5", "within what rank 0 recorded");
  expect("0B0,the sum", "0X0,the sum", "t.csv:16: ");
  expect("action,exchange", "what,exchange", "expected \"step,rank,");
  expect("3 exchanges", "2 exchanges", "expected \"# 6 events, 3 exchanges\", found");
  expect("1,0,10", "0,0,10", "expected a step, found \"0\"");
}

TEST(Recording, EveryScheduleComesBackFromItsText) {
  for (const std::string& name : std::vector<std::string>{"1f1b", "zbv", "dualpipev"}) {
    const auto order = schedule::make_schedule(
        name, {.ranks = 2, .stages_per_rank = name == "1f1b" ? 1 : 2, .microbatches = 4});
    const auto verified = verify::VerifiedSchedule::from(schedule::lower_communication(order));
    const Recording recording =
        testing_support::recording_of(verified, {{.message = 64}, {.latency = 0.5}});
    EXPECT_EQ(parse_recording(to_text(recording), "t.csv"), recording) << name;
    EXPECT_EQ(steps_of(recording), (std::vector<std::int64_t>{1, 2})) << name;
  }
}

TEST(Recording, AStepCountsWhenEveryRankHasIt) {
  const Recording recording = parse_recording(kSmall, "t.csv");
  EXPECT_EQ(steps_of(recording), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(events_of(recording, Rank(0), 1).size(), 4U);
  EXPECT_EQ(events_of(recording, Rank(0), 2).size(), 1U);
  EXPECT_TRUE(events_of(recording, Rank(1), 2).empty());
}

TEST(Recording, AnyPrefixIsRefusedAsCutShort) {
  for (std::size_t size = kSmall.find("# schedule"); size < kSmall.size(); ++size) {
    const std::string message = refusal_of(kSmall.substr(0, size));
    EXPECT_NE(message.find("t.csv: cut short"), std::string::npos) << size << ": " << message;
  }
}

TEST(Recording, OtherTextsAndVersionsAreNamed) {
  EXPECT_NE(refusal_of("").find("t.csv:1: no timeline of penstock"), std::string::npos);
  EXPECT_NE(refusal_of("{}\n").find("no timeline of penstock"), std::string::npos);
  EXPECT_NE(
      refusal_of(with("timeline 1", "timeline 2")).find("t.csv:1: a timeline of version \"2\""),
      std::string::npos);
}

TEST(Recording, ErrorsNameTheLineAndWhatWasExpected) {
  const auto expect = [](const std::string& from, const std::string& to, const std::string& part) {
    const std::string message = refusal_of(with(from, to));
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect("1,0,0F0,0,0,50,0", "1,0,0F0,0,0,50", "t.csv:7: expected 7 values");
  expect("1,0,0F0,0,0,50,0", "1,0,0F0,0,0,50,0,1", "t.csv:7: expected 7 values");
  expect("1,0,0F0,0,0,50,0", "0,0,0F0,0,0,50,0", "t.csv:7: expected a step, found \"0\"");
  expect("1,0,0F0,0,0,50,0", "1,2,0F0,0,0,50,0", "expected a rank from 0 to 1, found \"2\"");
  expect("1,0,0F0,0,0,50,0", "1,0,0X0,0,0,50,0", "t.csv:7: ");
  expect("1,0,0F0,0,0,50,0", "1,0,0F0,9,8,50,0", "a time not before the start, found \"8\"");
  expect("1,0,0F0,0,0,50,0", "1,0,0F0,0,51,50,0", "found \"50\"");
  expect("1,0,0F0,0,0,50,0", "1,0,0F0,0,0,50,x", "expected bytes, found \"x\"");
  expect("await 0SEND_F0", "await 0F0", "expected a SEND behind \"await \", found \"0F0\"");
  expect("0SEND_F0,50,", "0SEND_F0,49,", "t.csv:8: 0SEND_F0 starts before 0F0");
  expect("2,0,0F0,80", "1,1,0F0,80", "t.csv:12: 1F0 starts before 0F0");
  expect("1,1,1F0", "1,0,1F0", "expected events by rank, then by step");
  expect("# 6 events", "# 7 events", "t.csv:13: expected \"# 6 events\", found \"# 7 events\"");
  expect("# 6 events", "# exchanges\n# 6 events", "expected \"step,rank,start_ns,");
  expect("# 6 events\n", "# 6 events\n1", "expected the end of the file");
  expect("pipe 1 data 0", "pipe 0 data 0", "2 ranks are no grid of pipe(1) x data(1)");
  expect("pipe 1 data 0", "pipe 1 data 1", "2 ranks are no grid");
  expect("# ranks 2", "# ranks 0", "expected the number of ranks");
  expect("clock 8\n", "clock -8\n", "expected the number of a clock");
}

}  // namespace
}  // namespace penstock::measure
