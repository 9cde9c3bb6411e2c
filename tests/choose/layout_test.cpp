#include "penstock/plan/choose/layout.h"

#include <gtest/gtest.h>

#include "penstock/config/read.h"
#include "penstock/plan/config/flat.h"

namespace penstock::choose {
namespace {

const Layout kLayout = {.mesh = {.pipe = 2, .data = 2},
                        .zero = config::ZeroStage::Gradients,
                        .schedule = "zbv",
                        .stages_per_rank = 2,
                        .microbatch = 3,
                        .microbatches = 4,
                        .recompute_interval = 1};

config::Config read(const std::string& text, const std::vector<config::Override>& changes = {}) {
  return config::parse_config(text, "run.json", changes).config;
}

TEST(Layout, IsWrittenIntoKeysAndReadFromThem) {
  const config::Config config = with_layout({}, kLayout);
  EXPECT_EQ(layout_of(config, kLayout.mesh), kLayout);
  EXPECT_EQ(config.batch.train_batch_size, 24);
  Layout of_file = kLayout;
  of_file.schedule.clear();
  of_file.stages_per_rank = 1;
  of_file.file = "program.json";
  EXPECT_EQ(layout_of(with_layout(config, of_file), kLayout.mesh), of_file);
}

TEST(Layout, OfASchedulesOwnStages) {
  const config::Config config = read(R"({"train_batch_size": 4, "schedule": "zbv"})");
  EXPECT_EQ(layout_of(config, {.pipe = 2}).stages_per_rank, 2);
}

// What makes the keys of one layout those of another, whatever form they are written in.
TEST(Layout, ChangesKeys) {
  for (const char* text : {R"({"train_batch_size": 4, "schedule": "1f1b"})",
                           R"({"train_micro_batch_size_per_gpu": 1, "schedule": {"adapt": true},
                               "gradient_accumulation_steps": 4, "mesh": {"pipe": 4}})"}) {
    const config::Config before = read(text);
    Layout rerouted = kLayout;
    rerouted.schedule.clear();
    rerouted.file = "program.json";
    for (const Layout& layout : {kLayout, rerouted}) {
      const config::Config after = with_layout(before, layout);
      EXPECT_EQ(read(text, config::changes(before, after, "--elastic")), after);
    }
    EXPECT_TRUE(config::changes(before, before, "--elastic").empty());
  }
}

}  // namespace
}  // namespace penstock::choose
