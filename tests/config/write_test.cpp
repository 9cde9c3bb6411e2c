#include "penstock/plan/config/write.h"

#include <gtest/gtest.h>

#include <vector>

namespace penstock::config {
namespace {

std::vector<Config> various_configs() {
  std::vector<Config> configs(6);
  configs[1].batch = {16, 2, 4};
  configs[1].mesh = {2, 2};
  configs[1].optimizer = {OptimizerType::AdamW, 0.1, {1.0 / 3, 0}, 5e-324, 1e300, 0};
  configs[2].optimizer = {.type = OptimizerType::Sgd, .lr = 0.1 + 0.2, .momentum = 0.9};
  configs[2].scheduler = {.type = SchedulerType::WarmupCosine,
                          .warmup_num_steps = 5,
                          .total_num_steps = 50,
                          .warmup_min_ratio = 0.1,
                          .cos_min_ratio = 0.2};
  configs[3].scheduler = {.type = SchedulerType::Wsd,
                          .warmup = 0.03,
                          .decay = 20,
                          .decay_type = DecayType::OneMinusSqrt,
                          .min_ratio = 0.1};
  configs[3].run = {.epochs = 2.5, .best = "code", .patience = 3};
  configs[3].data.validation = {{"chats", "a.bin"}, {"code", "b \"c\".bin"}};
  configs[1].model = {.type = ModelType::HuggingFace, .path = "m"};
  configs[1].model.adapter = {.rank = 4,
                              .targets = "all-linear",
                              .rank_pattern = {{"layers.0.*", 2}},
                              .alpha_pattern = {{"q_proj", 0.1}, {"v_proj", 3}},
                              .use_rslora = true,
                              .use_dora = true,
                              .init_lora_weights = FirstAdapters::Gaussian,
                              .modules_to_save = "lm_head"};
  configs[3].pipeline = {PartitionMethod::TypeRegex, "Block|\"\\\\d", {}, {}};
  configs[3].schedule = {"", "a b/\"x\".csv", 2};
  configs[4].pipeline = {PartitionMethod::LayerCost, "", {0.1, 2, 3e9}, {}};
  configs[4].model.type = ModelType::Mlp;
  configs[5].pipeline = {PartitionMethod::Bounds, "", {}, {0, 1, 7}};
  configs[5].data.path = "\xC3\xA9\n\t\x7F // */ null";
  configs[5].data.validation = {{"", "held"}};
  configs[4].data.sources = {{"a \"b\".bin", 0.1, DataFormat::LlmC}, {"c", 3, DataFormat::Auto}};
  configs[4].data.shuffle = false;
  configs[5].seed = INT64_MAX;
  configs[5].zero_optimization.stage = ZeroStage::Parameters;
  configs[5].zero_optimization.offload_optimizer = {OffloadDevice::Nvme, "/fast"};
  configs[5].zero_optimization.offload_param = {OffloadDevice::Nvme, "/also fast"};
  configs[5].launch = {0.25, 1e6, 900, 1, 2, Transport::Tcp, Device::Cuda};
  configs[5].checkpoint = {"kept", 40, 0.5, 3, 100, false, OnFailure::Stop, "runs/a/step-00000040"};
  return configs;
}

TEST(ToText, ReadsBackToTheSameConfig) {
  for (const Config& config : various_configs()) {
    const std::string text = to_text(config);
    EXPECT_EQ(parse_config(text, "resolved.json").config, config) << text;
  }
}

TEST(ToText, WithOriginsReadsBackToTheSameConfig) {
  for (const Config& config : various_configs()) {
    const ReadConfig read = parse_config(to_text(config), "resolved.json");
    EXPECT_EQ(parse_config(to_text(read), "again.json").config, config) << to_text(read);
  }
}

TEST(ToText, GivesEachValueItsOrigin) {
  const std::vector<Override> overrides = {
      {"run.steps", "50", "--steps"},
      {"data.path", "a\nb", "--set data.path=a\nb"},
      parse_override("schedule=gpipe"),
  };
  EXPECT_EQ(to_text(parse_config(R"({"seed": 7, "train_batch_size": 8,
      "optimizer": {"type": "SGD"}})",
                                 "gpt.json", overrides)),
            R"({
  "train_batch_size": 8,  // gpt.json:1:33
  "train_micro_batch_size_per_gpu": null,  // default
  "gradient_accumulation_steps": null,  // default
  "optimizer": {
    "type": "SGD",  // gpt.json:2:29
    "params": {
      "lr": 0.001,  // default
      "weight_decay": 0,  // default
      "momentum": 0  // default
    },
    "groups": []  // default
  },
  "scheduler": {
    "type": "Constant",  // default
    "params": {
      "warmup": 0  // default
    }
  },
  "gradient_clipping": 0,  // default
  "steps_per_print": 10,  // default
  "seed": 7,  // gpt.json:1:10
  "model": {
    "type": "gpt",  // default
    "layers": 4,  // default
    "hidden": 128,  // default
    "heads": 4,  // default
    "sequence_length": 128,  // default
    "vocabulary": 256,  // default
    "tie_embeddings": false,  // default
    "dropout": 0  // default
  },
  "data": {
    "path": "a\nb",  // --set data.path=a b
    "format": "auto",  // default
    "sources": [],  // default
    "shuffle": true,  // default
    "validation": ""  // default
  },
  "mesh": {
    "pipe": 1,  // default
    "data": null,  // default
    "context": 1,  // default
    "tensor": 1  // default
  },
  "pipeline": {
    "partition": "parameters",  // default
    "activation_checkpoint_interval": 0  // default
  },
  "schedule": {
    "name": "gpipe",  // --set schedule=gpipe
    "stages_per_rank": null,  // default
    "window_steps": 20,  // default
    "cost_change": 0.25,  // default
    "adapt": false  // default
  },
  "zero_optimization": {
    "stage": 0,  // default
    "reduce_bucket_size": 1048576,  // default
    "offload_param": {},
    "offload_optimizer": {}
  },
  "bf16": {
    "enabled": false  // default
  },
  "fp16": {
    "enabled": false  // default
  },
  "data_types": {},
  "numerics": {
    "invariant": false  // default
  },
  "launch": {
    "heartbeat_seconds": 30,  // default
    "startup_seconds": 300,  // default
    "disk_seconds": 1800,  // default
    "transport": "auto",  // default
    "device": "auto"  // default
  },
  "checkpoint": {
    "resume": "",  // default
    "save_interval": 0,  // default
    "save_minutes": 0  // default
  },
  "run": {
    "directory": "",  // default
    "epochs": 0,  // default
    "steps": 50,  // --steps
    "minutes": 0,  // default
    "eval_interval": 0,  // default
    "eval_batches": 8,  // default
    "best": "",  // default
    "sample_bytes": 200,  // default
    "sample_interval": 0,  // default
    "timeline_steps": 0,  // default
    "save": ""  // default
  }
}
)");
}

TEST(ConfigToText, OfInitializeHasEveryKeyWithItsValue) {
  InitializeConfig config;
  config.config.zero_optimization.stage = ZeroStage::Parameters;
  const std::string text = to_text(config);
  const auto has = [&](const char* words) { return text.find(words) != std::string::npos; };
  EXPECT_TRUE(has("\"zero_optimization\": {\"stage\": 3, ")) << text;
  EXPECT_TRUE(has("\"stage3_param_persistence_threshold\": 100000")) << text;
  EXPECT_TRUE(has("\"fp16\": {\"enabled\": false, \"loss_scale\": 0, ")) << text;
  EXPECT_TRUE(has("\"train_batch_size\": null")) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

}  // namespace
}  // namespace penstock::config
