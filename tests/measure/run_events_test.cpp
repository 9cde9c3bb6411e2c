#include "penstock/plan/measure/run_events.h"

#include <gtest/gtest.h>

#include "penstock/core/text.h"

namespace penstock::measure {
namespace {

const std::vector<RunEvent> kOneOfEach = {
    {.kind = RunEventKind::Started,
     .time = "2026-01-02T03:04:05.678Z",
     .step = 40,
     .ranks = 4,
     .layout = "pipe(2) x data(2), 1f1b",
     .device = "cpu; messages by shared memory"},
    {.kind = RunEventKind::Resumed,
     .time = "t",
     .step = 40,
     .folder = "runs/a \"b\"/step-00000040",
     .lost_steps = 17,
     .passed_over = {"one\nof two lines", "two"}},
    {.kind = RunEventKind::Saved, .time = "t", .step = 80, .folder = "f", .seconds = 0.1},
    {.kind = RunEventKind::SaveFailed, .time = "t", .step = 120, .reason = "no space"},
    {.kind = RunEventKind::Failed, .time = "t", .step = 57, .reason = "killed", .exit_code = 4},
    {.kind = RunEventKind::Failed, .time = "t", .reason = "killed", .before_ready = true},
    {.kind = RunEventKind::Started, .time = "t", .ranks = 1, .layout = "l", .lost_steps = 3},
    {.kind = RunEventKind::Restarting, .time = "t", .ranks = 3, .attempt = 2, .pause_seconds = 1},
    {.kind = RunEventKind::CostsChanged, .time = "t", .step = 40, .reason = "slower"},
    {.kind = RunEventKind::ProgramChanged,
     .time = "t",
     .step = 40,
     .layout = "l",
     .reason = "faster",
     .file = "schedule-after-40.csv"},
    {.kind = RunEventKind::ProgramJudged, .time = "t", .step = 60, .reason = "it is"},
    {.kind = RunEventKind::Stopped, .time = "t", .step = 9, .reason = "asked", .exit_code = 75},
    {.kind = RunEventKind::Finished, .time = "t", .step = 200},
};

TEST(RunEvents, ALineIsOneJsonObject) {
  EXPECT_EQ(to_line(kOneOfEach[4]),
            "{\"event\": \"failed\", \"time\": \"t\", \"step\": 57, \"reason\": \"killed\", "
            "\"exit_code\": 4}\n");
  EXPECT_EQ(to_line(kOneOfEach[1]),
            "{\"event\": \"resumed\", \"time\": \"t\", \"step\": 40, "
            "\"folder\": \"runs/a \\\"b\\\"/step-00000040\", \"lost_steps\": 17, "
            "\"passed_over\": [\"one\\nof two lines\", \"two\"]}\n");
}

TEST(RunEvents, EachKindComesBackFromItsLine) {
  std::string text;
  for (const RunEvent& event : kOneOfEach) {
    text += to_line(event);
    EXPECT_NE(text.find(str("\"event\": \"", to_string(event.kind), "\"")), std::string::npos);
  }
  EXPECT_EQ(parse_run_events(text, "e").events, kOneOfEach);
  EXPECT_EQ(parse_run_events("", "e"), RunEvents{});
}

TEST(RunEvents, EveryCutOfTheLastLineLeavesTheLinesBeforeIt) {
  const std::string first = to_line(kOneOfEach[0]);
  const std::string second = to_line(kOneOfEach[1]);
  for (std::size_t size = 0; size < second.size(); ++size) {
    const RunEvents read = parse_run_events(first + second.substr(0, size), "e");
    ASSERT_EQ(read.events, std::vector{kOneOfEach[0]}) << size;
  }
}

TEST(RunEvents, KindsAndKeysOfANewerVersionArePassedOver) {
  const RunEvents read = parse_run_events(
      "{\"event\": \"moved\", \"step\": \"x\"}\n\n"
      "{\"event\": \"finished\", \"time\": \"t\", \"step\": 3, \"more\": {}}\n",
      "e");
  EXPECT_EQ(read.unknown, 1);
  EXPECT_EQ(read.events,
            (std::vector<RunEvent>{{.kind = RunEventKind::Finished, .time = "t", .step = 3}}));
}

TEST(RunEvents, WhatIsNoEventIsCountedAndTheFirstIsToldWithItsLineAndKey) {
  const std::string good = to_line(kOneOfEach.back());
  const auto with = [&](const std::string& line) {
    const RunEvents read = parse_run_events(good + line + "\n" + good + "[]\n", "e.jsonl");
    EXPECT_EQ(read.events, (std::vector{kOneOfEach.back(), kOneOfEach.back()}));
    EXPECT_EQ(read.unreadable, 2);
    return read.why_unreadable;
  };
  EXPECT_EQ(with("[1]"), "e.jsonl:2: expected an event, found a list");
  EXPECT_EQ(with("{}"), "e.jsonl:2: an event has no \"event\"");
  EXPECT_EQ(with("{\"event\": 3}"), "e.jsonl:2: \"event\": expected a text, found 3");
  EXPECT_EQ(with("{\"event\": \"finished\", \"time\": \"t\"}"),
            "e.jsonl:2: the event \"finished\" has no \"step\"");
  const std::string finished = "{\"event\": \"finished\", \"time\": \"t\", \"step\": ";
  for (const std::string step : {"-1", "1.5", "\"1\"", "null", "1000000000000001"}) {
    EXPECT_EQ(with(finished + step + "}"),
              "e.jsonl:2: \"step\": expected a whole number from 0 to 10^15, found " + step);
  }
  const std::string saved =
      "{\"event\": \"saved\", \"time\": \"t\", \"step\": 1, \"folder\": \"f\", \"seconds\": ";
  EXPECT_EQ(with(saved + "-0.5}"),
            "e.jsonl:2: \"seconds\": expected a number from 0 to 10^15, found -0.5");
  const std::string resumed =
      "{\"event\": \"resumed\", \"time\": \"t\", \"step\": 1, \"folder\": \"f\", "
      "\"lost_steps\": 0, \"passed_over\": ";
  EXPECT_EQ(with(resumed + "[\"a\", 1]}"),
            "e.jsonl:2: \"passed_over\": expected a list of texts, found a list");
  EXPECT_EQ(with("{\"event\": \"failed\", \"time\": \"t\", \"step\": 1, \"reason\": \"r\", "
                 "\"exit_code\": 4, \"before_ready\": 1}"),
            "e.jsonl:2: \"before_ready\": expected true or false, found 1");
  EXPECT_NE(with("{\"event\"").find("e.jsonl:2"), std::string::npos);
}

}  // namespace
}  // namespace penstock::measure
