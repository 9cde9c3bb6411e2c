#include "penstock/plan/schedule/json.h"

#include <gtest/gtest.h>

#include "penstock/core/text.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "tests/support/message_of.h"
#include "tests/support/schedules.h"

namespace penstock::schedule {
namespace {

using testing_support::message_of;
using testing_support::Random;
using testing_support::rows;

std::string refusal(std::string text) {
  return message_of([&] { parse_json(std::move(text), "plan.json"); });
}

TEST(ScheduleJson, HoldsTheSizesThePlacementAndThePrograms) {
  Schedule schedule = rows({"0F0,0F1,(3F0;0B0)OVERLAP_F_B", "2F0,2B0"});
  schedule.name = "my \"plan\"";
  EXPECT_EQ(to_json(schedule, "{\"forward\": [1, 2]}"),
            "{\n"
            "  \"name\": \"my \\\"plan\\\"\",\n"
            "  \"purpose\": \"train\",\n"
            "  \"ranks\": 2,\n"
            "  \"stages\": 4,\n"
            "  \"microbatches\": 2,\n"
            "  \"placement\": [0, null, 1, 0],\n"
            "  \"programs\": [\n"
            "    [\"0F0\", \"0F1\", \"(3F0;0B0)OVERLAP_F_B\"],\n"
            "    [\"2F0\", \"2B0\"]\n"
            "  ],\n"
            "  \"costs\": {\"forward\": [1, 2]}\n"
            "}\n");
}

TEST(ScheduleJson, ParseIsTheInverseOfPrint) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int trial = 0; trial < 200; ++trial) {
    Schedule schedule = testing_support::random_order(random, {.overlap = 0.3, .split = 0.3});
    schedule.name = random.one_of<std::string>({"", "x", "\xC3\xA4 \"\\\n\x01"});
    if (random.chance(0.5)) schedule = lower_as_torch(schedule);
    if (random.chance(0.2)) schedule.programs.emplace_back();
    schedule.stages += random.between(0, 2);
    schedule.microbatches += random.between(0, 2);
    const auto costs = random.one_of<std::string>({"", "{ \"a\": [1,\n 2.50] }", "null", "1e3"});
    const std::string text = to_json(schedule, costs);
    const Document back = parse_json(text, "x");
    EXPECT_EQ(back.schedule, schedule) << text;
    EXPECT_EQ(back.costs ? json::text_of(*back.costs) : "", costs);
  }
}

TEST(ScheduleJson, NeedsOnlyThePrograms) {
  const Document document = parse_json("{\"programs\": [[\"0F0\"], [\"1F0\"]]}", "plan.json");
  EXPECT_EQ(document.schedule, parse_csv("0F0\n1F0\n", "plan.json"));
  EXPECT_FALSE(document.costs.has_value());
}

// A number of stages that nothing in the file bears out costs nothing to read or print.
TEST(ScheduleJson, HasNoPlacementOfStagesThatCannotHaveARank) {
  const Document document =
      parse_json("{\"programs\": [[\"0F0\"]], \"stages\": 16777216}", "plan.json");
  const std::string text = to_json(document.schedule);
  EXPECT_LT(text.size(), 200u);
  EXPECT_EQ(parse_json(text, "x").schedule, document.schedule);
}

TEST(ScheduleJson, AComputeOnlyFileHasNoMessages) {
  const auto parse = [](const char* text) {
    return message_of([&] { parse_json(text, "plan.json", FileFormat::ComputeOnly); });
  };
  EXPECT_EQ(parse("{\"programs\": [[\"0UNSHARD\", \"0F0\"]]}"), "no error");
  EXPECT_EQ(parse("{\"programs\": [[\"0F0\",\n\"0SEND_F0\"]]}"),
            "plan.json:2:1: 0SEND_F0 in a compute_only file, which has no messages\n"
            "  note: a program with messages is in the format compute_comms");
}

TEST(ScheduleJson, RefusalsNameThePlaceAndWhatWasExpected) {
  EXPECT_EQ(refusal("[]"), "plan.json:1:1: the schedule: expected an object, found a list");
  EXPECT_EQ(refusal("{\"name\": \"x\"}"),
            "plan.json:1:1: no programs; expected \"programs\": a list of lists of actions");
  EXPECT_EQ(refusal("{\"programs\": [[\"0F0\"]],\n \"rank\": 1}"),
            "plan.json:2:2: unknown key \"rank\"; did you mean \"ranks\"?");
  EXPECT_EQ(refusal("{\"programs\": [[\"0F0\",\n\"0Fx\"]]}"),
            "plan.json:2:1: action \"0Fx\" column 2: expected one of F, B, I, W, SEND_F, RECV_F, "
            "SEND_B, RECV_B, UNSHARD, RESHARD, REDUCE_GRAD, found \"Fx\"");
  EXPECT_EQ(refusal("{\"programs\": [[\"\"]]}"),
            "plan.json:1:16: action \"\" column 1: expected a stage number, found the end");
  EXPECT_EQ(refusal("{\"programs\": [[null]]}"),
            "plan.json:1:16: programs: expected an action such as \"0F0\", found null");
  EXPECT_EQ(refusal("{\"programs\": [\"0F0\"]}"),
            "plan.json:1:15: programs: expected a list of actions, found \"0F0\"");
  EXPECT_EQ(refusal("{\"programs\": [[], []]}"),
            "plan.json:1:14: programs: no actions; expected a list of them per rank");
  EXPECT_EQ(refusal("{\"programs\": 1}"),
            "plan.json:1:14: programs: expected a list per rank, found 1");
  EXPECT_EQ(refusal("{\"programs\": [[\"0F0\"]], \"ranks\": 2}"),
            "plan.json:1:34: ranks is 2, must be the number of lists in programs (1)");
  EXPECT_EQ(refusal("{\"programs\": [[\"0F0\"]], \"stages\": -1}"),
            "plan.json:1:35: stages: expected an integer from 0 to 16777216, found -1");
  EXPECT_EQ(refusal("{\"programs\": [[\"0F0\", \"2F1\"]], \"stages\": 2}"),
            "plan.json:1:42: stages is 2, must be at least 3: the programs have stage 2");
  EXPECT_EQ(
      refusal("{\"programs\": [[\"0F0\", \"2F1\"]], \"microbatches\": 0}"),
      "plan.json:1:48: microbatches is 0, must be at least 2: the programs have microbatch 1");
  EXPECT_EQ(refusal("{\"programs\": [[\"0F0\"]], \"microbatches\": 1.0}"),
            "plan.json:1:41: microbatches: expected an integer from 0 to 16777216, found 1.0");
  EXPECT_EQ(refusal("{\"programs\": [[\"0F0\"]], \"purpose\": \"eval\"}"),
            "plan.json:1:36: purpose: expected \"train\" or \"forward\", found \"eval\"");
  EXPECT_EQ(refusal("{\"programs\": [[\"0F0\"]], \"placement\": [0, 0]}"),
            "plan.json:1:38: placement has 2 entries, must have one per stage (1)");
  EXPECT_EQ(
      refusal("{\"programs\": [[\"0F0\"], [\"1F0\"]], \"placement\": [0, 0]}"),
      "plan.json:1:51: placement: stage 1 is said to be on rank 0, but its actions are on rank "
      "1");
  EXPECT_EQ(refusal("{\"programs\": [[\"0F0\", \"2F0\"]], \"placement\": [0, 0, 0]}"),
            "plan.json:1:49: placement: stage 1 is said to be on rank 0, but it has no actions");
  EXPECT_EQ(refusal("{\"programs\": [[\"0F0\"]]"),
            "plan.json:1:23: unexpected end of input; expected ',' or '}'");
}

}  // namespace
}  // namespace penstock::schedule
