#include "penstock/plan/render/chrome_trace.h"

#include <gtest/gtest.h>

namespace penstock::render {
namespace {

TEST(ChromeTrace, NothingIsAnEmptyTrace) {
  EXPECT_EQ(chrome_trace(Trace{}), "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n]}\n");
}

TEST(ChromeTrace, NamesComeFirstByRankAndThenTheEventsInTheirOrder) {
  const std::vector<TraceEvent> events = {
      {.name = "1F0", .category = "compute", .process = 1, .start_us = 30.25, .duration_us = 10},
      {.name = "0SEND_F0",
       .category = "communication",
       .process = 0,
       .thread = kCommunicationThread,
       .start_us = 20,
       .duration_us = 0.0004,
       .args = {{"peer", "1"}, {"tag", "7"}}},
  };
  EXPECT_EQ(chrome_trace({.events = events}), R"({"displayTimeUnit":"ms","traceEvents":[
{"name":"process_name","ph":"M","pid":0,"tid":0,"args":{"name":"rank 0"}},
{"name":"process_sort_index","ph":"M","pid":0,"tid":0,"args":{"sort_index":0}},
{"name":"thread_name","ph":"M","pid":0,"tid":1,"args":{"name":"communication"}},
{"name":"thread_sort_index","ph":"M","pid":0,"tid":1,"args":{"sort_index":1}},
{"name":"process_name","ph":"M","pid":1,"tid":0,"args":{"name":"rank 1"}},
{"name":"process_sort_index","ph":"M","pid":1,"tid":0,"args":{"sort_index":1}},
{"name":"thread_name","ph":"M","pid":1,"tid":0,"args":{"name":"compute"}},
{"name":"thread_sort_index","ph":"M","pid":1,"tid":0,"args":{"sort_index":0}},
{"name":"1F0","cat":"compute","ph":"X","pid":1,"tid":0,"ts":30.250,"dur":10.000},
{"name":"0SEND_F0","cat":"communication","ph":"X","pid":0,"tid":1,"ts":20.000,"dur":0.000,)"
                                              R"("args":{"peer":"1","tag":"7"}}
]}
)");
}

TEST(ChromeTrace, TimesOfALongRunKeepTheirNanoseconds) {
  const std::vector<TraceEvent> events = {
      {.name = "0F0", .category = "compute", .start_us = 86'400'000'000.125, .duration_us = 1.5}};
  EXPECT_NE(chrome_trace({.events = events}).find("\"ts\":86400000000.125,\"dur\":1.500"),
            std::string::npos);
}

TEST(ChromeTrace, TextIsQuoted) {
  const std::vector<TraceEvent> events = {
      {.name = "a\"b", .category = "compute", .args = {{"k\\", "line\nbreak\xFF"}}}};
  const std::string trace = chrome_trace({.events = events});
  EXPECT_NE(trace.find(R"("name":"a\"b")"), std::string::npos);
  EXPECT_NE(trace.find("\"args\":{\"k\\\\\":\"line\\nbreak\xEF\xBF\xBD\"}"), std::string::npos);
}

TEST(ChromeTrace, CountersFollowTheEvents) {
  Trace trace;
  trace.events = {{.name = "0F0", .category = "compute", .duration_us = 1}};
  trace.counters = {{.name = "memory", .process = 0, .time_us = 2.5, .value = 1.5}};
  EXPECT_NE(chrome_trace(trace).find("\n{\"name\":\"memory\",\"ph\":\"C\",\"pid\":0,\"ts\":2.500,"
                                     "\"args\":{\"memory\":1.5}}\n]}"),
            std::string::npos);
}

}  // namespace
}  // namespace penstock::render
