#include "penstock/plan/config/override.h"

#include <gtest/gtest.h>

#include <vector>

#include "penstock/config/read.h"
#include "tests/support/message_of.h"

namespace penstock::config {
namespace {

using testing_support::message_of;

ReadConfig with(const std::string& text, const std::vector<std::string>& settings) {
  std::vector<Override> overrides;
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  return parse_config(text, "gpt.json", overrides);
}

std::string refusal(const std::string& text, const std::vector<std::string>& settings) {
  return message_of([&] { with(text, settings); });
}

TEST(Override, ReplacesAValueOfTheFile) {
  const ReadConfig read = with(R"({"model": {"layers": 2, "heads": 2}})", {"model.layers=6"});
  EXPECT_EQ(read.config.model.layers, 6);
  EXPECT_EQ(read.config.model.heads, 2);
  EXPECT_EQ(to_string(read.origins.at("model.layers")), "--set model.layers=6");
  EXPECT_EQ(to_string(read.origins.at("model.heads")), "gpt.json:1:34");
}

TEST(Override, MakesSectionsThatAreNotThere) {
  EXPECT_EQ(with("{}", {"optimizer.params.lr=0.5"}).config.optimizer.lr, 0.5);
}

TEST(Override, TheLastOneWins) { EXPECT_EQ(with("{}", {"seed=1", "seed=2"}).config.seed, 2); }

TEST(Override, ReplacesABadValueOfTheFile) {
  EXPECT_EQ(with(R"({"seed": "x"})", {"seed=2"}).config.seed, 2);
}

TEST(Override, NullTakesAKeyOut) {
  EXPECT_EQ(
      with(R"({"model": {"type": "gpt", "heads": 8}})", {"model.type=mlp", "model.heads=null"})
          .config.model.heads,
      ModelConfig{}.heads);
}

TEST(Override, MayGiveAListOrAWholeSection) {
  EXPECT_EQ(
      with("{}", {"pipeline.partition=bounds", "pipeline.bounds=[0, 3, 6]"}).config.pipeline.bounds,
      (std::vector<std::int64_t>{0, 3, 6}));
  const auto model = with(R"({"model": {"layers": 9}})", {R"(model={"hidden": 64})"}).config.model;
  EXPECT_EQ(model.hidden, 64);
  EXPECT_EQ(model.layers, ModelConfig{}.layers);
}

TEST(Override, AStringIsTakenAsItIs) {
  for (const std::string path :
       {"corpus", "2024", "1e5", "true", "a=b", "[x", "\"", "", "\xC3\xA9"}) {
    EXPECT_EQ(with("{}", {"data.path=" + path}).config.data.path, path);
  }
  EXPECT_EQ(with("{}", {"data.path=\"quoted\""}).config.data.path, "quoted");
}

TEST(Override, BytesThatAreNotUtf8AreRefused) {
  EXPECT_EQ(refusal("{}", {"data.path=\xFF"}),
            "--set data.path=\xEF\xBF\xBD: the value is not UTF-8");
}

TEST(Override, SetsTheScheduleOverItsShortForm) {
  EXPECT_EQ(with(R"({"schedule": "1f1b"})", {"schedule=gpipe"}).config.schedule.name, "gpipe");
  EXPECT_EQ(with(R"({"schedule": "gpipe"})", {"schedule.stages_per_rank=2"}).config.schedule,
            (ScheduleConfig{"gpipe", "", 2}));
  EXPECT_EQ(with(R"({"schedule": {"name": "zbv", "stages_per_rank": 2}})", {"schedule=x.csv"})
                .config.schedule,
            (ScheduleConfig{"", "x.csv", {}}));
  for (const std::string file : {"x.csv", "a/x.json", "steps.txt"}) {
    EXPECT_EQ(with("{}", {"schedule=" + file}).config.schedule, (ScheduleConfig{"", file, {}}));
  }
}

TEST(Override, AnUnknownPathNamesTheNearestKey) {
  EXPECT_EQ(refusal("{}", {"model.layrs=3"}),
            "--set model.layrs=3: unknown key \"model.layrs\"; did you mean \"model.layers\"?");
  EXPECT_EQ(refusal("{}", {"layers=3"}),
            "--set layers=3: unknown key \"layers\"; did you mean \"model.layers\"?");
  EXPECT_EQ(refusal("{}", {"aio=true"}),
            "--set aio=true: unknown key \"aio\": DeepSpeed has it, penstock does not");
  EXPECT_EQ(refusal("{}", {"pipeline.stages=2"}),
            "--set pipeline.stages=2: unknown key \"pipeline.stages\": it is DeepSpeed's; "
            "DeepSpeed passes it over; stages follow from the schedule; use mesh.pipe");
  EXPECT_EQ(refusal("{}", {"seed.x=1"}),
            "--set seed.x=1: unknown key \"seed.x\"; did you mean \"seed\"?");
  EXPECT_EQ(refusal("{}", {"model.=1"}),
            "--set model.=1: unknown key \"model.\"; did you mean \"model\"?");
}

TEST(Override, AllThatIsWrongIsSaidAtOnceWithThatOfTheFile) {
  EXPECT_EQ(refusal(R"({"sed": 1})", {"fooo=1", "seed=x", "barr=2"}),
            "--set barr=2: unknown key \"barr\"\n"
            "  note: --set fooo=1: unknown key \"fooo\"\n"
            "  note: --set seed=x: seed: expected an integer, found \"x\"\n"
            "  note: gpt.json:1:2: unknown key \"sed\"; did you mean \"seed\"?");
}

TEST(Override, ValuesAreCheckedAsThoseOfAFile) {
  EXPECT_EQ(refusal("{}", {"model.layers=x"}),
            "--set model.layers=x: model.layers: expected an integer, found \"x\"");
  EXPECT_EQ(refusal("{}", {"model.layers=-1"}),
            "--set model.layers=-1: model.layers = -1: must be in [0, 65536]");
  EXPECT_EQ(refusal("{}", {"model=gpt"}),
            "--set model=gpt: model: expected an object, found \"gpt\"");
  EXPECT_EQ(refusal("{}", {R"(model={"layrs": 1})"}),
            "--set model={\"layrs\": 1}: unknown key \"layrs\" in model; did you mean \"layers\"?");
}

TEST(Override, AFileThatIsNoSectionThereIsReported) {
  EXPECT_EQ(refusal(R"({"model": 3})", {"model.layers=2"}),
            "gpt.json:1:11: model: expected an object, found 3");
}

TEST(Override, OptionsAreOverridesWithTheirOwnName) {
  const std::vector<Override> overrides = {{"run.steps", "0", "--steps"}};
  EXPECT_EQ(message_of([&] { parse_config("{}", "gpt.json", overrides); }),
            "--steps: run.steps = 0: must be in [1, 1000000000000]");
}

TEST(Override, NeedsAKeyAndAValue) {
  EXPECT_EQ(message_of([] { parse_override("model.layers"); }),
            "--set model.layers: expected KEY=VALUE, for example model.layers=2");
  EXPECT_EQ(message_of([] { parse_override("=3"); }),
            "--set =3: expected KEY=VALUE, for example model.layers=2");
}

}  // namespace
}  // namespace penstock::config
