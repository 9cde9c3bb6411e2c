#include "penstock/plan/render/recording_trace.h"

#include <gtest/gtest.h>

#include "penstock/core/text.h"

namespace penstock::render {
namespace {

measure::Event event(measure::What what, const std::string& action, std::int64_t start,
                     std::int64_t ready, std::int64_t end) {
  return {.step = 3,
          .rank = Rank(1),
          .what = what,
          .action = schedule::parse_action(action),
          .start_ns = start,
          .ready_ns = ready,
          .end_ns = end};
}

TEST(RecordingTrace, WaitsAndMessagesStandBelowWhatIsComputed) {
  using measure::What;
  const measure::Recording recording{
      .ranks = {{.at = {.pipe = 0}}, {.at = {.pipe = 1}}},
      .events = {event(What::Action, "1F0", 1000, 3000, 8000),
                 event(What::Action, "1SEND_F0", 8000, 8000, 8500),
                 event(What::Action, "1F1", 9000, 9000, 9500),
                 event(What::AwaitSend, "1SEND_F0", 9500, 9900, 9900)},
      .exchanges = {{.step = 3,
                     .rank = Rank(1),
                     .name = "the sum",
                     .start_ns = 4000,
                     .begun_ns = 4100,
                     .awaited_ns = 5000,
                     .end_ns = 6000}}};
  std::vector<std::string> texts;
  for (const TraceEvent& each : trace_of(recording).events) {
    texts.push_back(str(each.name, ' ', each.process, ' ', each.category, ' ', each.thread, ' ',
                        each.start_us, '+', each.duration_us, ' ', each.args[0].second));
  }
  EXPECT_EQ(texts,
            (std::vector<std::string>{
                "wait for 1F0 1 communication 1 1+2 3", "1F0 1 compute 0 3+5 3",
                "1SEND_F0 1 communication 1 8+0.5 3", "1F1 1 compute 0 9+0.5 3",
                "await 1SEND_F0 1 communication 1 9.5+0.4 3", "the sum 1 communication 1 4+0.1 3",
                "await the sum 1 communication 1 5+1 3"}));
}

}  // namespace
}  // namespace penstock::render
