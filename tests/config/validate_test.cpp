#include "penstock/config/validate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "penstock/config/read.h"
#include "tests/support/message_of.h"

namespace penstock::config {
namespace {

using testing_support::message_of;

std::string refusal(const std::string& text) {
  return message_of([&] { parse_config(text, "gpt.json"); });
}

std::string refusal(const Config& config) {
  return message_of([&] { validate(config); });
}

TEST(Validate, TheDefaultsAreValid) { EXPECT_EQ(refusal(Config{}), "no error"); }

TEST(Validate, RangesHoldForConfigsMadeInCode) {
  Config config;
  config.model.layers = -1;
  config.optimizer.betas = {0.9, 2};
  config.gradient_clipping = std::nan("");
  config.data.path = std::string("a\0b", 3);
  config.batch.train_batch_size = -4;
  EXPECT_EQ(refusal(config),
            "train_batch_size = -4: must be in [1, 1073741824]\n"
            "  note: optimizer.params.betas[1] = 2: must be in [0, 1)\n"
            "  note: gradient_clipping = nan: must be at least 0\n"
            "  note: model.layers = -1: must be in [0, 65536]\n"
            "  note: data.path: holds a NUL character");
}

TEST(Validate, AFileOfOptimizerStatesNeedsAFolder) {
  const auto offload = [](const std::string& values) {
    return refusal(R"({"zero_optimization": {"offload_optimizer": {)" + values + "}}}");
  };
  EXPECT_EQ(offload(R"("device": "nvme")"),
            "gpt.json:1:56: zero_optimization.offload_optimizer.nvme_path is missing: device "
            "\"nvme\" needs the folder of a file");
  EXPECT_EQ(offload(R"("device": "nvme", "nvme_path": "/fast")"), "no error");
  EXPECT_EQ(offload(R"("device": "cpu", "nvme_path": null)"), "no error");
  EXPECT_EQ(offload(R"("device": "disk")"),
            "gpt.json:1:56: zero_optimization.offload_optimizer.device = \"disk\": expected "
            "\"none\", \"cpu\" or \"nvme\"");
}

TEST(Validate, OffloadedParametersNeedStage3AndAFolder) {
  const auto offload = [](const std::string& stage, const std::string& values) {
    return refusal(R"({"zero_optimization": {"stage": )" + stage + R"(, "offload_param": {)" +
                   values + "}}}");
  };
  EXPECT_EQ(offload("3", R"("device": "nvme")"),
            "gpt.json:1:64: zero_optimization.offload_param.nvme_path is missing: device \"nvme\" "
            "needs the folder of a file");
  EXPECT_EQ(offload("2", R"("device": "nvme", "nvme_path": "/fast")"),
            "gpt.json:1:64: zero_optimization.offload_param.device = \"nvme\": needs "
            "zero_optimization.stage 3, and not 2, with which parameters are whole all the time");
  EXPECT_EQ(offload("0", R"("device": "cpu")"), "no error");
  EXPECT_EQ(offload("3", R"("device": "nvme", "nvme_path": "/fast")"), "no error");
  EXPECT_EQ(offload("3", R"("device": "cpu")"), "no error");
  EXPECT_EQ(offload("1", R"("device": "none")"), "no error");
}

TEST(Validate, ThereIsOneTypeOfParametersAndGradientsFitIt) {
  EXPECT_EQ(refusal(R"({"bf16": {"enabled": true}, "fp16": {"enabled": true}})"),
            "gpt.json:1:49: fp16.enabled = true: bf16.enabled is true, too; take one of them");
  EXPECT_EQ(refusal(R"({"bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "fp16"}})"),
            "gpt.json:1:64: data_types.grad_accum_dtype = \"fp16\": the parameters are \"bf16\"; "
            "take null or \"fp32\"");
  EXPECT_EQ(refusal(R"({"bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "fp32"},
                        "numerics": {"invariant": true}})"),
            "gpt.json:1:64: data_types.grad_accum_dtype = \"fp32\": numerics.invariant adds "
            "gradients in the type of the parameters");
  EXPECT_EQ(refusal(R"({"fp16": {"enabled": true}, "data_types": {"grad_accum_dtype": "fp16"}})"),
            "no error");
}

TEST(Validate, HeadsDivideHidden) {
  EXPECT_EQ(refusal(R"({"model": {"hidden": 96, "heads": 5}})"),
            "gpt.json:1:35: model.heads = 5: must divide model.hidden = 96; use 4 or 6");
  EXPECT_EQ(refusal(R"({"model": {"hidden": 130}})"),
            "gpt.json:1:22: model.heads = 4: must divide model.hidden = 130; use 2 or 5");
  EXPECT_EQ(refusal(R"({"model": {"hidden": 8, "heads": 100}})"),
            "gpt.json:1:34: model.heads = 100: must divide model.hidden = 8; use 8");
  EXPECT_EQ(refusal(R"({"model": {"type": "mlp", "hidden": 130}})"), "no error");
}

TEST(Validate, AHuggingFaceModelIsAFoldersAndAdaptersAreIts) {
  const auto model = [](const std::string& values) {
    return refusal(R"({"model": {"type": )" + values + "}}");
  };
  EXPECT_EQ(model(R"("hugging_face")"),
            "gpt.json:1:20: model.path is missing: type \"hugging_face\" needs the folder of a "
            "model");
  const std::string folder = R"("hugging_face", "path": "m")";
  EXPECT_EQ(model(folder), "no error");
  EXPECT_EQ(model(folder + R"(, "adapter": {"rank": 8, "targets": "q_proj", "merge": true})"),
            "no error");
  EXPECT_NE(model(folder + R"(, "adapter": {"rank": 8, "targets": "q_("})")
                .find("model.adapter.targets = \"q_(\": not a regular expression"),
            std::string::npos);
  EXPECT_NE(model(folder + R"(, "adapter": {"ranks": 8})").find("did you mean \"rank\""),
            std::string::npos);
  EXPECT_NE(model(R"("gpt", "adapter": {"rank": 8})").find("model.type"), std::string::npos);
}

TEST(Validate, APartitionHasWhatItsMethodNeeds) {
  EXPECT_EQ(refusal(R"({"pipeline": {"partition": "layer_cost"}})"),
            "gpt.json:1:28: pipeline.layer_costs is missing: partition \"layer_cost\" needs one "
            "cost a layer");
  EXPECT_EQ(refusal(R"({"pipeline": {"partition": "bounds"}})"),
            "gpt.json:1:28: pipeline.bounds is missing: partition \"bounds\" needs the first "
            "layer of each stage, then the number of layers");
}

TEST(Validate, BoundsRiseFromZero) {
  for (const std::string bounds : {"0", "1, 4", "0, 2, 2", "0, 3, 2"}) {
    EXPECT_EQ(refusal(R"({"pipeline": {"partition": "bounds", "bounds": [)" + bounds + "]}}"),
              "gpt.json:1:48: pipeline.bounds = [" + bounds +
                  "]: must start with 0, rise, and end with the number of layers");
  }
}

TEST(Validate, WarmupEndsBeforeTheSteps) {
  EXPECT_EQ(refusal(R"({"scheduler": {"type": "WarmupCosineLR", "params":
                        {"warmup_num_steps": 9, "total_num_steps": 8}}})"),
            "gpt.json:2:46: scheduler.params.warmup_num_steps = 9: must be at most "
            "total_num_steps = 8");
  // A run cut short with --steps may end inside its warm-up.
  EXPECT_EQ(parse_config(R"({"scheduler": {"type": "WarmupCosineLR", "params":
                             {"warmup_num_steps": 101}}})",
                         "gpt.json")
                .config.scheduler.warmup_num_steps,
            101);
}

TEST(Validate, AScheduleHasANameOrAFile) {
  EXPECT_EQ(refusal("{\"schedule\": {\"name\": \"1f1b\",\n\"file\": \"a.csv\"}}"),
            "gpt.json:2:9: schedule.file = \"a.csv\": schedule.name = \"1f1b\" is given too; keep "
            "one of them");
  Config config;
  config.schedule.name.clear();
  EXPECT_EQ(refusal(config), "schedule: needs a name or a file");
}

}  // namespace
}  // namespace penstock::config
