#include "penstock/plan/render/timeline_page.h"

#include <gtest/gtest.h>

#include <memory>

#include "penstock/core/error.h"
#include "penstock/core/json/tree.h"
#include "penstock/plan/render/loss_svg.h"
#include "penstock/plan/render/simulated_timeline.h"
#include "penstock/schedule/generators/generators.h"
#include "tests/render/svg_text.h"
#include "tests/support/schedules.h"

namespace penstock::render {
namespace {

using JsonValue = json::Value;

Timeline timeline_of(const schedule::Schedule& schedule) {
  const auto verified = verify::VerifiedSchedule::from(schedule);
  return simulated_timeline(verified, simulate::simulate(verified));
}

std::string page_of(const Timeline& timeline) {
  return timeline_page(timeline.title, {&timeline, 1});
}

// The text of the element that begins with `open`.
std::string element(const std::string& page, const std::string& open) {
  const std::size_t begin = page.find(open) + open.size();
  return page.substr(begin, page.find("</script>", begin) - begin);
}

JsonValue data_of(const std::string& page) {
  const std::string text = element(page, "<script type=\"application/json\" id=\"data\">\n");
  return json::parse(std::make_shared<json::Source>(json::Source{.name = "page", .text = text}));
}

const JsonValue& at(const JsonValue& value, const std::string& key) {
  return json::find(std::get<JsonValue::Object>(value.data), key)->value;
}
const JsonValue& at(const JsonValue& value, std::size_t index) {
  return std::get<JsonValue::Array>(value.data)[index];
}
std::string text(const JsonValue& value) { return std::string(json::text_of(value)); }

TEST(TimelinePage, HoldsEveryBarOfEveryRow) {
  const JsonValue data =
      data_of(page_of(timeline_of(testing_support::rows({"0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"}))));
  const JsonValue& rows = at(at(at(data, "timelines"), 0), "rows");
  const JsonValue& lane = at(at(at(rows, 0), "lanes"), 0);
  EXPECT_EQ(text(at(lane, "op")), "\"aabb\"");
  EXPECT_EQ(text(at(lane, "microbatch")), "[0,1,0,1]");
  EXPECT_EQ(text(at(lane, "start")), "[0,1,4,7]");
  EXPECT_EQ(text(at(lane, "length")), "[1,1,2,2]");
  EXPECT_EQ(text(at(lane, "waits")), "[2,1,0,1,3,1,0,3]") << "0B0 for 1B0, 0B1 for 1B1";
  EXPECT_EQ(text(at(at(rows, 0), "memory")), "[0,1,1,2,6,1,9,0]");
  EXPECT_EQ(text(at(at(rows, 1), "stages")), "[1]");
}

TEST(TimelinePage, ABarsStageIsItsPlaceAmongTheRanksStages) {
  const JsonValue data = data_of(page_of(timeline_of(
      schedule::make_schedule("zbv", {.ranks = 2, .stages_per_rank = 2, .microbatches = 1}))));
  const JsonValue& row = at(at(at(at(data, "timelines"), 0), "rows"), 1);
  EXPECT_EQ(text(at(row, "stages")), "[1,2]");
  EXPECT_EQ(text(at(at(at(row, "lanes"), 0), "chunk")), "[0,1,1,1,0,0]");
}

TEST(TimelinePage, OverlappedPairsAreNamedByTheirForward) {
  const JsonValue data =
      data_of(page_of(timeline_of(testing_support::rows({"0F0,(0F1;0B0)OVERLAP_F_B,0B1"}))));
  const JsonValue& lane = at(at(at(at(at(data, "timelines"), 0), "rows"), 0), "lanes");
  EXPECT_EQ(text(at(at(lane, 0), "pairs")), "[1]");
}

TEST(TimelinePage, NeedsNothingFromElsewhere) {
  const std::string page =
      page_of(timeline_of(schedule::make_schedule("1f1b", {.ranks = 2, .microbatches = 2})));
  for (const char* link : {"http:", "https:", "src=", "@import", "url(", "<link", "fetch("}) {
    EXPECT_EQ(occurrences(page, link), 0u) << link;
  }
  EXPECT_EQ(occurrences(page, "default-src 'none'"), 1u) << "and a browser would refuse it";
  EXPECT_EQ(occurrences(page, "{{"), 0u) << "every place is filled in";
}

TEST(TimelinePage, ANameIsTextWhateverItHolds) {
  Timeline timeline = timeline_of(testing_support::rows({"0F0,0B0"}));
  timeline.title = "</script><script>alert(1)</script>{{data}}\"\\\xFF";
  const std::string page = page_of(timeline);
  EXPECT_EQ(occurrences(page, "<script>"), 1u) << "the page's own";
  EXPECT_EQ(occurrences(page, "</script>"), 2u) << "of the data and of the page's own";
  const JsonValue data = data_of(page);
  EXPECT_EQ(std::get<std::string>(at(at(at(data, "timelines"), 0), "title").data),
            "</script><script>alert(1)</script>{{data}}\"\\\xEF\xBF\xBD");
}

TEST(TimelinePage, TimelinesStandBelowEachOther) {
  const Timeline one = timeline_of(testing_support::rows({"0F0,0B0"}));
  Timeline two = one;
  two.unit = "us";
  const std::vector<Timeline> both = {one, two};
  const JsonValue data = data_of(timeline_page("both", both));
  EXPECT_EQ(text(at(at(at(data, "timelines"), 1), "unit")), "\"us\"");
}

TEST(TimelinePage, RefusesWhatNoBrowserWouldOpen) {
  Timeline timeline = timeline_of(testing_support::rows({"0F0,0B0"}));
  auto& bars = timeline.rows[0].lanes[0].bars;
  bars.resize(kPageBarsMax + 1, bars[0]);
  try {
    page_of(timeline);
    FAIL() << "a page of too many bars";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.message(), "a page or a trace of 2000001 actions: at most 2000000");
  }
}

TEST(TimelinePage, TablesStandBelowAndLeadToActions) {
  const Timeline timeline = timeline_of(testing_support::rows({"0F0,0B0"}));
  const Table tables[] = {{.title = "a < b",
                           .note = "n & m",
                           .columns = {"action", "x"},
                           .rows = {{"0F0", "<1>"}},
                           .begins_with_actions = true},
                          {.columns = {"rank"}, .rows = {{"0F0"}}}};
  const std::string page = timeline_page("t", {&timeline, 1}, tables);
  const std::string below = page.substr(page.find("</main>"));
  EXPECT_NE(below.find("<h2>a &lt; b</h2>"), std::string::npos);
  EXPECT_NE(below.find("n &amp; m"), std::string::npos);
  EXPECT_NE(below.find("<th>action</th><th>x</th>"), std::string::npos);
  EXPECT_NE(below.find("<td><a href=\"#0/0F0\">0F0</a></td><td>&lt;1&gt;</td>"), std::string::npos);
  EXPECT_NE(below.find("<tr><td>0F0</td></tr>"), std::string::npos) << "no link unless asked for";
  EXPECT_EQ(page_of(timeline).find("<table>"), std::string::npos);
}

TEST(TimelinePage, FiguresStandAboveTheTablesAndLinkToNothing) {
  const Timeline timeline = timeline_of(testing_support::rows({"0F0,0B0"}));
  const Table tables[] = {{.title = "table", .columns = {"rank"}, .rows = {{"0"}}}};
  const Figure figures[] = {
      {.title = "a < b", .note = "n & m", .svg = loss_svg({.train = {{1, 2}, {2, 1}}})}};
  const std::string page = timeline_page("t", {&timeline, 1}, tables, figures);
  EXPECT_LT(page.find("<h2>a &lt; b</h2>"), page.find("<h2>table</h2>"));
  EXPECT_NE(page.find("n &amp; m"), std::string::npos);
  EXPECT_EQ(occurrences(page, "<polyline"), 1u);
  EXPECT_EQ(occurrences(page, "http"), occurrences(page_of(timeline), "http"));
}

TEST(TimelinePage, AFigureIsEnoughForAPage) {
  const Figure figures[] = {{.title = "losses", .svg = loss_svg({})}};
  const std::string page = timeline_page("t", {}, {}, figures);
  EXPECT_EQ(text(at(data_of(page), "timelines")), "[]");
  EXPECT_NE(page.find("<h2>losses</h2>"), std::string::npos);
}

}  // namespace
}  // namespace penstock::render
