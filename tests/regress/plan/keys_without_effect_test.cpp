// Keys that can have no effect were taken without a word: fp16.loss_scale in a run in float32,
// stage3_* at stage 0, the folder of a file that nothing asks for.  Whoever wrote them believed
// in them.  One rule finds them: a key has an effect when its condition in the table of keys holds.
#include <gtest/gtest.h>

#include <set>

#include "penstock/config/read.h"
#include "penstock/core/text.h"
#include "penstock/plan/config/check.h"
#include "penstock/plan/config/effects.h"
#include "penstock/plan/config/keys.h"
#include "penstock/plan/config/write.h"

namespace penstock::config {
namespace {

std::string object_to_none(std::string_view) { return ""; }

std::string told_by_train(const std::string& text) {
  const ReadConfig read = parse_config(text, "ds.json");
  return join(warnings_of(ineffective_keys(read.config, read.origins)), "\n");
}

std::string told_by_initialize(const std::string& text, const Facts& facts) {
  const auto read = parse_initialize_config({.name = "ds.json", .text = text}, object_to_none,
                                            BatchSizes::NotNeeded);
  return join(warnings_of(ineffective_keys(read.config, read.origins, facts)), "\n");
}

std::string found_by_check(Dialect dialect, const std::string& text, const std::string& key) {
  for (const Finding& finding : check_config(dialect, text, "ds.json")) {
    if (finding.key == key) return str(to_string(finding.verdict), ": ", finding.why);
  }
  return "nothing";
}

struct Vain {
  std::string text;
  std::string key;
  std::string why;  // Continues "has no effect: ".
};

const std::vector<Vain> kVain = {
    {R"({"fp16": {"loss_scale": 8}})", "fp16.loss_scale",
     "fp16.enabled is false; it needs fp16.enabled = true"},
    {R"({"fp16": {"enabled": true, "loss_scale": 8, "hysteresis": 3}})", "fp16.hysteresis",
     "fp16.loss_scale is 8; it needs fp16.loss_scale = 0"},
    {R"({"zero_optimization": {"stage3_max_live_parameters": 9}})",
     "zero_optimization.stage3_max_live_parameters",
     "zero_optimization.stage is 0; it needs zero_optimization.stage = 3"},
    {R"({"zero_optimization": {"stage": 3, "stage3_model_persistence_threshold": 9}})",
     "zero_optimization.stage3_model_persistence_threshold",
     "zero_optimization.stage3_param_persistence_threshold is 0; it needs "
     "zero_optimization.stage3_param_persistence_threshold >= 1"},
    {R"({"zero_optimization": {"offload_optimizer": {"nvme_path": "/no/folder"}}})",
     "zero_optimization.offload_optimizer.nvme_path",
     "zero_optimization.offload_optimizer.device is \"none\"; it needs "
     "zero_optimization.offload_optimizer.device = \"nvme\""},
    {R"({"model": {"type": "hugging_face", "path": "m"}, "run": {"sample_bytes": 9}})",
     "run.sample_bytes",
     "model.type is \"hugging_face\"; it needs model.type = \"gpt\" or model.type = \"mlp\""},
    {R"({"pipeline": {"checkpointable_layers": "Nothing"}})", "pipeline.checkpointable_layers",
     "pipeline.activation_checkpoint_interval is 0; it needs "
     "pipeline.activation_checkpoint_interval >= 1"},
    {R"({"data_types": {"grad_accum_dtype": "fp32"}})", "data_types.grad_accum_dtype",
     "bf16.enabled is false and fp16.enabled is false; it needs bf16.enabled = true or "
     "fp16.enabled = true"},
    {R"({"optimizer": {"type": "Adam", "params": {"adam_w_mode": false}}})",
     "optimizer.params.adam_w_mode",
     "optimizer.params.weight_decay is 0; it needs optimizer.params.weight_decay > 0"},
    {R"({"optimizer": {"params": {"adam_w_mode": true, "weight_decay": 1}}})",
     "optimizer.params.adam_w_mode",
     "optimizer.type is \"AdamW\"; it needs optimizer.type = \"Adam\""},
    {R"({"optimizer": {"type": "SGD"}, "zero_optimization": {"offload_optimizer":
        {"device": "cpu"}}})",
     "zero_optimization.offload_optimizer.device",
     "optimizer.type is \"SGD\" and optimizer.params.momentum is 0 and bf16.enabled is false and "
     "fp16.enabled is false; it needs optimizer.type = \"AdamW\" or optimizer.params.momentum > 0 "
     "or bf16.enabled = true or fp16.enabled = true"},
};

TEST(KeysWithoutEffect, AreToldByTrainAndByCheckInTheSameWords) {
  for (const Vain& vain : kVain) {
    const std::string told = told_by_train(vain.text);
    EXPECT_NE(told.find(str(": ", vain.key, " has no effect: ", vain.why)), std::string::npos)
        << vain.text << ": " << told;
    const std::string found = found_by_check(Dialect::Train, vain.text, vain.key);
    EXPECT_TRUE(found.starts_with(str("different: has no effect: ", vain.why))) << found;
  }
}

TEST(KeysWithoutEffect, OfOneReasonShareALine) {
  EXPECT_EQ(told_by_train("{\"fp16\": {\n\"loss_scale\": 0, \"initial_scale_power\": 2,\n"
                          "\"min_loss_scale\": 1}}"),
            "ds.json:2:15: fp16.loss_scale, fp16.initial_scale_power and fp16.min_loss_scale have "
            "no effect: fp16.enabled is false; they need fp16.enabled = true");
}

TEST(KeysWithoutEffect, AreNoneWhereTheirConditionHolds) {
  EXPECT_EQ(told_by_train(R"({
      "fp16": {"enabled": true, "loss_scale": 0, "hysteresis": 2, "consecutive_hysteresis": true},
      "data_types": {"grad_accum_dtype": "fp32"},
      "pipeline": {"activation_checkpoint_interval": 1, "checkpointable_layers": "Block"},
      "optimizer": {"type": "Adam", "params": {"adam_w_mode": false, "weight_decay": 0.1}},
      "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 1,
        "stage3_model_persistence_threshold": 9,
        "offload_optimizer": {"device": "nvme", "nvme_path": "/tmp"}}})"),
            "");
}

TEST(KeysWithoutEffect, AreNoneInAConfigurationThatIsReadAgain) {
  for (const char* text : {"{}", R"({"fp16": {"loss_scale": 8}})"}) {
    const ReadConfig first = parse_config(text, "ds.json");
    EXPECT_EQ(told_by_train(to_text(first)).empty(), std::string_view(text) == "{}")
        << told_by_train(to_text(first));
  }
}

TEST(KeysWithoutEffect, OfAPipelineAreToldToAModule) {
  const std::string text = R"({"schedule": "gpipe", "pipeline":
                               {"activation_checkpoint_interval": 1}})";
  const std::string line = told_by_initialize(text, {{RunFact::IsPipeline, false}});
  EXPECT_NE(line.find("pipeline.activation_checkpoint_interval and schedule.name have no effect: "
                      "the model is no PipelineModule"),
            std::string::npos)
      << line;
  EXPECT_EQ(told_by_initialize(text, {{RunFact::IsPipeline, true}}), "");
  EXPECT_EQ(found_by_check(Dialect::Initialize, text, "schedule.name"),
            "different: has an effect only with a model that is a PipelineModule");
}

TEST(KeysWithoutEffect, OfAnOptimizerThatIsGivenAreToldToInitialize) {
  const std::string text = R"({"optimizer": {"type": "SGD", "params": {"lr": 1}}})";
  EXPECT_EQ(told_by_initialize(text, {{RunFact::HasNoOptimizer, true}}), "");
  EXPECT_EQ(told_by_initialize(text, {{RunFact::HasNoOptimizer, false}}),
            "ds.json:1:24: optimizer.type and optimizer.params.lr have no effect: initialize() is "
            "given an optimizer; they need no optimizer as an argument");
}

TEST(KeysWithoutEffect, AConditionOnAValueThatIsRefusedSaysNothing) {
  EXPECT_EQ(found_by_check(Dialect::Train, R"({"fp16": {"enabled": "yes", "loss_scale": 8}})",
                           "fp16.loss_scale"),
            "used: ");
}

TEST(KeysWithoutEffect, NeedKeysThatThereAre) {
  for (const Dialect dialect : {Dialect::Train, Dialect::Initialize}) {
    std::set<std::string> paths;
    for (const KeyInfo& key : known_keys(dialect)) paths.insert(key.path);
    int conditions = 0;
    for (const KeyInfo& key : known_keys(dialect)) {
      for (std::string word : split(key.needs, ' ')) {
        if (word.find('.') == std::string::npos) continue;
        if (word.ends_with(',')) word.pop_back();
        EXPECT_TRUE(paths.contains(word)) << key.path << ": " << key.needs;
        ++conditions;
      }
    }
    EXPECT_GT(conditions, 10);
  }
}

}  // namespace
}  // namespace penstock::config
