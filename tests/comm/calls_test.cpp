#include "penstock/runtime/comm/calls.h"

#include <gtest/gtest.h>

#include <thread>

namespace penstock::comm {
namespace {

TEST(Calls, NestedOnesBelongToTheOutermost) {
  CallLog log;
  const Call outer("save()");
  {
    const Call inner("gather()");
    log.speak();
  }
  EXPECT_EQ(Call::name(), "save()");
  EXPECT_EQ(
      log.place(),
      (CallPlace{
          .name = "save()", .is_inside = true, .has_spoken = true, .number = 1, .spoken = 1}));
}

TEST(Calls, OneThatSpeaksToNobodyHasNoNumber) {
  CallLog log;
  {
    const Call call("forward()");
  }
  const Call call("step()");
  EXPECT_EQ(log.place().number, 0);
  EXPECT_FALSE(log.place().has_spoken);
  log.speak();
  log.speak();
  EXPECT_EQ(log.place().number, 1);
}

TEST(Calls, ThoseOfSomeRanksHaveNoNumber) {
  CallLog log;
  {
    const Call call("gather()", Callers::Some);
    log.speak();
    EXPECT_EQ(log.place().number, 0);
    EXPECT_TRUE(log.place().has_spoken);
  }
  const Call call("step()");
  log.speak();
  EXPECT_EQ(log.place().number, 1);
}

TEST(Calls, EachCommunicatorNumbersThoseThatItHears) {
  CallLog first;
  CallLog second;
  for (int step = 0; step < 3; ++step) {
    const Call call("step()");
    first.speak();
    if (step == 2) second.speak();
    EXPECT_EQ(first.place().number, step + 1);
  }
  const Call call("save()");
  second.speak();
  EXPECT_EQ(second.place().number, 2);
  EXPECT_EQ(first.place().number, 0);  // And says where the rank is all the same.
  EXPECT_EQ(first.place().name, "save()");
}

TEST(Calls, WhatIsOverIsRemembered) {
  CallLog log;
  {
    const Call call("destroy()");
  }
  EXPECT_EQ(log.place().name, "destroy()");
  EXPECT_FALSE(log.place().is_inside);
  EXPECT_EQ(Call::name(), "");
}

TEST(Calls, AreOfTheThreadThatSpeaks) {
  CallLog log;
  const Call here("step()");
  std::thread([&] {
    const Call there("save()");
    log.speak();
    EXPECT_EQ(log.place().name, "save()");
  }).join();
  log.speak();
  EXPECT_EQ(log.place().name, "step()");
}

TEST(Calls, APlaceReadsBackFromItsText) {
  for (const CallPlace& place : {CallPlace{}, CallPlace{.name = "the end of GatheredParameters()",
                                                        .is_inside = true,
                                                        .has_spoken = true,
                                                        .number = 12,
                                                        .spoken = 1234567890123}}) {
    EXPECT_EQ(parse_call_place(to_text(place)), place);
  }
  EXPECT_EQ(parse_call_place("noise"), CallPlace{});
}

}  // namespace
}  // namespace penstock::comm
