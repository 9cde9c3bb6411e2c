#include "penstock/config/read.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <fstream>

#include "penstock/core/text.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace penstock::config {
namespace {

using testing_support::message_of;

std::string refusal(const std::string& text) {
  return message_of([&] { parse_config(text, "gpt.json"); });
}

Config parse(const std::string& text) { return parse_config(text, "gpt.json").config; }

TEST(ReadConfig, AnEmptyObjectIsTheDefaults) {
  const ReadConfig read = parse_config("{}", "gpt.json");
  EXPECT_EQ(read.config, Config{});
  EXPECT_TRUE(read.origins.empty());
}

TEST(ReadConfig, EveryKeyReachesItsField) {
  const Config c = parse(R"({
    "train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
    "optimizer": {"type": "AdamW", "params":
        {"lr": 3e-4, "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupCosineLR", "params":
        {"warmup_num_steps": 5, "total_num_steps": 50, "warmup_min_ratio": 0.1,
         "cos_min_ratio": 0.2}},
    "gradient_clipping": 1, "steps_per_print": 3, "seed": 7,
    "model": {"type": "gpt", "layers": 2, "hidden": 96, "heads": 3, "sequence_length": 64,
              "vocabulary": 512, "tie_embeddings": true, "dropout": 0.1},
    "data": {"path": "corpus", "format": "megatron", "shuffle": false, "validation": "held"},
    "mesh": {"pipe": 2, "data": 2},
    "pipeline": {"partition": "bounds", "bounds": [0, 2, 4],
                 "activation_checkpoint_interval": 2, "checkpointable_layers": "Block|Head"},
    "numerics": {"invariant": true},
    "schedule": {"name": "zbv", "stages_per_rank": 2},
    "launch": {"heartbeat_seconds": 5, "startup_seconds": 60.5, "disk_seconds": 900, "restarts": 7,
               "ranks_min": 2, "transport": "gloo", "device": "cpu"},
    "checkpoint": {"directory": "kept", "save_interval": 40, "save_minutes": 2.5, "keep_last": 3,
                   "keep_every": 100, "asynchronous": false, "on_failure": "stop",
                   "resume": "auto"},
    "run": {"directory": "out", "steps": 50, "minutes": 30.5, "eval_interval": 10,
            "eval_batches": 2, "sample_bytes": 0, "sample_interval": 5, "timeline_steps": 1,
            "save": "weights", "save_interval": 9}})");
  Config expected;
  expected.batch = {16, 2, 4};
  expected.optimizer = {.lr = 3e-4, .betas = {0.8, 0.95}, .eps = 1e-6, .weight_decay = 0.1};
  expected.scheduler = {.type = SchedulerType::WarmupCosine,
                        .warmup_num_steps = 5,
                        .total_num_steps = 50,
                        .warmup_min_ratio = 0.1,
                        .cos_min_ratio = 0.2};
  expected.gradient_clipping = 1;
  expected.steps_per_print = 3;
  expected.seed = 7;
  expected.model = {ModelType::Gpt, 2, 96, 3, 64, 512, true, 0.1};
  expected.data = {"corpus", DataFormat::Megatron, {}, false, {{"", "held"}}};
  expected.mesh = {2, 2};
  expected.pipeline = {PartitionMethod::Bounds, "", {}, {0, 2, 4}, 2, "Block|Head"};
  expected.numerics = {true};
  expected.schedule = {"zbv", "", 2};
  expected.launch = {5, 60.5, 900, 7, 2, Transport::Gloo, Device::Cpu};
  expected.checkpoint = {"kept", 40, 2.5, 3, 100, false, OnFailure::Stop, "auto"};
  expected.run = {.directory = "out",
                  .steps = 50,
                  .minutes = 30.5,
                  .eval_interval = 10,
                  .eval_batches = 2,
                  .sample_bytes = 0,
                  .sample_interval = 5,
                  .timeline_steps = 1,
                  .save = "weights",
                  .save_interval = 9};
  EXPECT_EQ(c, expected);
}

TEST(ReadConfig, EveryKeyOfZeroAndOfTypesReachesItsField) {
  const Config c = parse(R"({
    "zero_optimization": {"stage": 3, "reduce_bucket_size": 1000,
                          "stage3_max_live_parameters": 2000, "stage3_prefetch_bucket_size": 300},
    "bf16": {"enabled": false},
    "fp16": {"enabled": true, "loss_scale": 138.0, "initial_scale_power": 12,
             "loss_scale_window": 500, "hysteresis": 3, "consecutive_hysteresis": true,
             "min_loss_scale": 0.5},
    "data_types": {"grad_accum_dtype": "fp32"}})");
  Config expected;
  expected.zero_optimization = {ZeroStage::Parameters, 1000, 2000, 300};
  expected.fp16 = {true, 138, 12, 500, 3, true, 0.5};
  expected.data_types.grad_accum_dtype = DataType::Fp32;
  EXPECT_EQ(c, expected);
  EXPECT_TRUE(parse(R"({"bf16": {"enabled": true}})").bf16.enabled);
}

TEST(ReadConfig, ChoicesOfOtherFields) {
  const Config c = parse(R"({"optimizer": {"type": "SGD", "params": {"momentum": 0.9}},
                             "model": {"type": "mlp"},
                             "pipeline": {"partition": "layer_cost", "layer_costs": [1, 2.5]}})");
  EXPECT_EQ(c.optimizer.type, OptimizerType::Sgd);
  EXPECT_EQ(c.optimizer.momentum, 0.9);
  EXPECT_EQ(c.model.type, ModelType::Mlp);
  EXPECT_EQ(c.pipeline.layer_costs, (std::vector<double>{1, 2.5}));
}

TEST(ReadConfig, SourcesOfTokensReachTheirFields) {
  const Config c = parse(R"({"data": {"sources": [
      {"path": "a.bin", "weight": 3, "format": "uint16"}, {"path": "b"}]}})");
  EXPECT_EQ(c.data.sources, (std::vector<DataSource>{{"a.bin", 3, DataFormat::Uint16},
                                                     {"b", 1, DataFormat::Auto}}));
}

TEST(ReadConfig, ValidationSetsAreAPathOrPathsByName) {
  EXPECT_EQ(parse(R"({"data": {"validation": "v.bin"}})").data.validation,
            (std::vector<ValidationSet>{{"", "v.bin"}}));
  EXPECT_EQ(parse(R"({"data": {"validation": ""}})").data.validation, std::vector<ValidationSet>());
  EXPECT_EQ(parse(R"({"data": {"validation": {"b": "1.bin", "a": "2.bin"}}})").data.validation,
            (std::vector<ValidationSet>{{"b", "1.bin"}, {"a", "2.bin"}}));
  for (const auto& [sets, message] :
       {std::array{"[]", "data.validation: expected a string, or an object of paths by name"},
        std::array{R"({"a": 1})", "data.validation.a: expected a string"},
        std::array{R"({"a": "1", "": "2"})", "each of several sets needs a name"}}) {
    const std::string told = refusal(str(R"({"data": {"validation": )", sets, "}}"));
    EXPECT_NE(told.find(message), std::string::npos) << told;
  }
}

TEST(ReadConfig, AdaptersTakeListsAndPatterns) {
  const auto adapter = [](const std::string& keys) {
    return str(R"({"model": {"type": "hugging_face", "path": "m", "adapter": {"rank": 2, )", keys,
               "}}}");
  };
  const AdapterConfig read =
      parse(adapter(R"("targets": ["q_proj", "v_proj"], "rank_pattern": {"q_proj": 4},
                       "alpha_pattern": {"layers.0.*": 0.5}, "use_dora": true)"))
          .model.adapter;
  EXPECT_EQ(read.targets, "q_proj|v_proj");
  EXPECT_EQ(read.rank_pattern, (std::vector<NamedNumber>{{"q_proj", 4}}));
  EXPECT_EQ(read.alpha_pattern, (std::vector<NamedNumber>{{"layers.0.*", 0.5}}));
  EXPECT_TRUE(read.use_dora);
  for (const auto& [keys, message] :
       {std::array{R"("targets": ["q_proj", 3])", "targets[1] = 3: expected a name"},
        std::array{R"("targets": ["self_attn.q_proj"])", "expected a name"},
        std::array{R"("rank_pattern": {"q_proj": 1.5})", "rank_pattern.q_proj = 1.5"},
        std::array{R"("rank_pattern": {"q_proj": 0})", "must be in [1, 65536]"},
        std::array{R"("alpha_pattern": {"(": 1})", "not a regular expression"}}) {
    const std::string told = refusal(adapter(keys));
    EXPECT_NE(told.find(message), std::string::npos) << told;
  }
}

TEST(ReadConfig, WhatDoesNotFitTheCourseOfARunIsRefused) {
  for (const auto& [config, message] : {
           std::array{R"({"run": {"epochs": 2, "steps": 5}})", "run.steps"},
           std::array{R"({"run": {"best": "chats"}})",
                      "needs a validation set of that name; there is validation"},
           std::array{R"({"run": {"best": "validation", "eval_batches": 0}})",
                      "needs validations, and run.eval_batches is 0"},
           std::array{R"({"scheduler": {"type": "WSD", "params": {"warmup": 0.5, "decay": 0.6}}})",
                      "must be at most all of the steps together"},
           std::array{R"({"scheduler": {"type": "Linear", "params": {"decay": 0.6}}})", "\"WSD\""},
       }) {
    EXPECT_NE(refusal(config).find(message), std::string::npos) << refusal(config);
  }
}

TEST(ReadConfig, RefusesSourcesThatAreNone) {
  const auto refusal_of = [](const std::string& sources) {
    return refusal(R"({"data": {"sources": )" + sources + "}}");
  };
  for (const auto& [sources, message] :
       {std::array{"{}", "data.sources: expected a list of objects"},
        std::array{"[\"a.bin\"]", "data.sources[0]: expected an object, found \"a.bin\""},
        std::array{"[{\"weight\": 1}]", "data.sources[0].path is missing"},
        std::array{"[{\"path\": \"a\"}, {\"path\": \"b\", \"weight\": 0}]",
                   "data.sources[1].weight = 0: must be greater than 0"},
        std::array{"[{\"path\": \"a\", \"format\": \"uint8\"}]",
                   "data.sources[0].format = \"uint8\": expected \"auto\""},
        std::array{"[{\"path\": \"a\", \"wieght\": 1}]",
                   "data.sources[0]: unknown key \"wieght\"; did you mean \"weight\"?"},
        std::array{"[{\"path\": \"a\", \"format\": \"text\"}]",
                   "data.sources: their format is \"text\"; sources are token files"}}) {
    EXPECT_NE(refusal_of(sources).find(message), std::string::npos) << refusal_of(sources);
  }
  EXPECT_NE(refusal(R"({"data": {"path": "c", "sources": [{"path": "a"}]}})")
                .find("data.sources: data.path = \"c\" is given too; keep one of them"),
            std::string::npos);
}

TEST(ReadConfig, GroupsOfParametersReachTheirFields) {
  const Config c = parse(R"({"optimizer": {"type": "SGD",
      "params": {"momentum": 0.9, "nesterov": true},
      "groups": [{"parameters": "bias$", "weight_decay": 0},
                 {"parameters": "^head", "lr": 0.1, "betas": [0.8, 0.9], "eps": 1e-6}]}})");
  EXPECT_TRUE(c.optimizer.nesterov);
  EXPECT_EQ(c.optimizer.groups,
            (std::vector<ParameterGroup>{
                {.parameters = "bias$", .weight_decay = 0},
                {.parameters = "^head", .lr = 0.1, .betas = {{0.8, 0.9}}, .eps = 1e-6}}));
}

TEST(ReadConfig, RefusesGroupsOfParametersThatAreNone) {
  const auto refusal_of = [](const std::string& groups) {
    return refusal(R"({"optimizer": {"groups": )" + groups + "}}");
  };
  for (const auto& [groups, message] :
       {std::array{"{}", "optimizer.groups: expected a list of objects"},
        std::array{"[\"bias\"]", "optimizer.groups[0]: expected an object, found \"bias\""},
        std::array{"[{\"lr\": 1}]", "optimizer.groups[0].parameters is missing"},
        std::array{"[{\"parameters\": \"(\"}]", "optimizer.groups[0].parameters = \"(\": not a"},
        std::array{"[{\"parameters\": \"a\", \"lr\": -1}]",
                   "optimizer.groups[0].lr = -1: must be at least 0"},
        std::array{"[{\"parameters\": \"a\", \"weight_decy\": 1}]",
                   "optimizer.groups[0]: unknown key \"weight_decy\"; did you mean "
                   "\"weight_decay\"?"}}) {
    EXPECT_NE(refusal_of(groups).find(message), std::string::npos) << refusal_of(groups);
  }
  EXPECT_NE(refusal(R"({"optimizer": {"type": "SGD", "params": {"nesterov": true}}})")
                .find("optimizer.params.nesterov = true: needs momentum above 0, and dampening 0"),
            std::string::npos);
}

TEST(ReadConfig, PartitionNamesItsMethodOrAPattern) {
  const auto partition = [](const std::string& text) {
    return parse("{\"pipeline\": {\"partition\": \"" + text + "\"}}").pipeline;
  };
  EXPECT_EQ(partition("uniform").partition, PartitionMethod::Uniform);
  EXPECT_EQ(partition("parameters").partition, PartitionMethod::Parameters);
  EXPECT_EQ(partition("type:Block|Head").partition, PartitionMethod::TypeRegex);
  EXPECT_EQ(partition("type:Block|Head").type_regex, "Block|Head");
}

TEST(ReadConfig, AScheduleMayBeAPlainString) {
  EXPECT_EQ(parse(R"({"schedule": "gpipe"})").schedule, (ScheduleConfig{"gpipe", "", {}}));
  EXPECT_EQ(parse(R"({"schedule": "my/zb.csv"})").schedule, (ScheduleConfig{"", "my/zb.csv", {}}));
}

TEST(ReadConfig, AFileReplacesTheDefaultScheduleName) {
  EXPECT_EQ(parse(R"({"schedule": {"file": "a.txt"}})").schedule,
            (ScheduleConfig{"", "a.txt", {}}));
}

TEST(ReadConfig, WholeNumbersMayBeWrittenAsFloats) {
  EXPECT_EQ(parse(R"({"run": {"steps": 1e3}})").run.steps, 1000);
  EXPECT_EQ(parse(R"({"seed": 4.0})").seed, 4);
}

TEST(ReadConfig, NullLeavesAnOptionalAbsent) {
  EXPECT_EQ(parse(R"({"mesh": {"data": null}, "train_batch_size": null})"), Config{});
}

TEST(ReadConfig, OriginsAreTheValuesPlaces) {
  const ReadConfig read = parse_config("{\"seed\": 1,\n \"model\": {\"layers\":2}}", "gpt.json");
  ASSERT_EQ(read.origins.size(), 2u);
  EXPECT_EQ(to_string(read.origins.at("seed")), "gpt.json:1:10");
  EXPECT_EQ(to_string(read.origins.at("model.layers")), "gpt.json:2:21");
}

struct Refused {
  std::string text;
  std::string message;
};

class RefusedConfig : public testing::TestWithParam<Refused> {};

TEST_P(RefusedConfig, NamesPlaceValueAndRepair) {
  EXPECT_EQ(refusal(GetParam().text), "gpt.json:" + GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Keys, RefusedConfig,
    testing::Values(
        Refused{"{\n  \"optimiser\": {}}",
                "2:3: unknown key \"optimiser\"; did you mean "
                "\"optimizer\"?"},
        Refused{"{\"zero_optimisation\": {}}",
                "1:2: unknown key \"zero_optimisation\"; did you mean \"zero_optimization\"?"},
        Refused{"{\"zero_optimization\": {\"stage\": 4}}",
                "1:33: zero_optimization.stage = 4: must be in [0, 3]"},
        Refused{"{\"activation_checkpointng\": {}}",
                "1:2: unknown key \"activation_checkpointng\"; did you mean "
                "\"activation_checkpointing\"?"},
        Refused{"{\"tensorboard\": {\"enabled\": true}}",
                "1:29: tensorboard.enabled = true: the run directory has the metrics, as JSON "
                "lines; use python -m penstock.board RUN"},
        Refused{"{\"lr\": 1}", "1:2: unknown key \"lr\"; did you mean \"optimizer.params.lr\"?"},
        Refused{"{\"xyzzyplugh\": 1}", "1:2: unknown key \"xyzzyplugh\""},
        Refused{"{\"model\": {\"layrs\": 2}}",
                "1:12: unknown key \"layrs\" in model; did you mean \"layers\"?"},
        Refused{"{\"optimizer\": {\"lr\": 2}}",
                "1:16: unknown key \"lr\" in optimizer; did you mean \"optimizer.params.lr\"?"},
        Refused{"{\"optimizer\": {\"type\": \"SGD\", \"params\": {\"betas\": [0.9, 0.99]}}}",
                "1:42: optimizer.params.betas: only optimizer.type \"AdamW\" or \"Adam\" takes "
                "it; remove it, or change optimizer.type"},
        Refused{"{\"optimizer\": {\"params\": {\"momentum\": 0.9}}}",
                "1:27: optimizer.params.momentum: only optimizer.type \"SGD\" takes it; remove "
                "it, or change optimizer.type"},
        Refused{"{\"scheduler\": {\"params\": {\"warmup_num_steps\": 1}}}",
                "1:27: scheduler.params.warmup_num_steps: only scheduler.type \"WarmupCosineLR\" "
                "takes it; remove it, or change scheduler.type"},
        Refused{"{\"model\": {\"type\": \"mlp\", \"heads\": 4}}",
                "1:27: model.heads: only model.type \"gpt\" takes it; remove it, or change "
                "model.type"},
        Refused{"{\"pipeline\": {\"bounds\": [0, 4]}}",
                "1:15: pipeline.bounds: only pipeline.partition \"bounds\" takes it; remove it, "
                "or change pipeline.partition"}));

INSTANTIATE_TEST_SUITE_P(
    Types, RefusedConfig,
    testing::Values(
        Refused{"[]", "1:1: the config: expected an object, found a list"},
        Refused{"{\"model\": 3}", "1:11: model: expected an object, found 3"},
        Refused{"{\"schedule\": 3}", "1:14: schedule: expected an object, found 3"},
        Refused{"{\"model\": {\"layers\": \"four\"}}",
                "1:22: model.layers: expected an integer, found \"four\""},
        Refused{"{\"model\": {\"layers\": 4.5}}",
                "1:22: model.layers: expected an integer, found 4.5"},
        Refused{"{\"model\": {\"layers\": null}}",
                "1:22: model.layers: expected an integer, found null"},
        Refused{"{\"train_batch_size\": {}}",
                "1:22: train_batch_size: expected an integer, found an object"},
        Refused{"{\"optimizer\": {\"params\": {\"lr\": true}}}",
                "1:33: optimizer.params.lr: expected a number, found true"},
        Refused{"{\"optimizer\": {\"params\": {\"betas\": 0.9}}}",
                "1:36: optimizer.params.betas: expected a list of 2 numbers, found 0.9"},
        Refused{"{\"optimizer\": {\"params\": {\"betas\": [0.9]}}}",
                "1:36: optimizer.params.betas: expected a list of 2 numbers, found 1"},
        Refused{"{\"optimizer\": {\"params\": {\"betas\": [0.9, \"x\"]}}}",
                "1:42: optimizer.params.betas[1]: expected a number, found \"x\""},
        Refused{"{\"pipeline\": {\"partition\": \"bounds\", \"bounds\": 4}}",
                "1:48: pipeline.bounds: expected a list of integers, found 4"},
        Refused{"{\"data\": {\"path\": 7}}", "1:19: data.path: expected a string, found 7"},
        Refused{"{\"data\": {\"path\": \"a\\u0000\"}}", "1:19: data.path: holds a NUL character"},
        Refused{"{\"model\": {\"tie_embeddings\": 1}}",
                "1:30: model.tie_embeddings: expected true or false, found 1"},
        Refused{"{\"pipeline\": {\"checkpointable_layers\": 4}}",
                "1:40: pipeline.checkpointable_layers: expected a regular expression, found 4"},
        Refused{"{\"schedule\": \"\"}",
                "1:14: schedule.name: expected a string that is not empty, found \"\""},
        Refused{"{\"model\": {\"type\": 1}}",
                "1:20: model.type: expected \"gpt\", \"mlp\" or \"hugging_face\", found 1"},
        Refused{"{\"pipeline\": {\"partition\": []}}",
                "1:28: pipeline.partition: expected \"uniform\", \"parameters\", \"type:REGEX\", "
                "\"layer_cost\" or \"bounds\", found a list"}));

INSTANTIATE_TEST_SUITE_P(
    Values, RefusedConfig,
    testing::Values(
        Refused{"{\"model\": {\"layers\": -1}}", "1:22: model.layers = -1: must be in [0, 65536]"},
        Refused{"{\"seed\": -1}", "1:10: seed = -1: must be at least 0"},
        Refused{"{\"seed\": 1e30}", "1:10: seed = 1e30: must be at most 9223372036854775807"},
        Refused{"{\"seed\": 18446744073709551615}",
                "1:10: seed = 18446744073709551615: must be at most 9223372036854775807"},
        Refused{"{\"gradient_clipping\": -0.5}",
                "1:23: gradient_clipping = -0.5: must be at least 0"},
        Refused{"{\"optimizer\": {\"params\": {\"betas\": [0.9, 1]}}}",
                "1:42: optimizer.params.betas[1] = 1: must be in [0, 1)"},
        Refused{"{\"model\": {\"dropout\": 1}}", "1:23: model.dropout = 1: must be in [0, 1)"},
        Refused{"{\"launch\": {\"heartbeat_seconds\": 0}}",
                "1:34: launch.heartbeat_seconds = 0: must be in (0, 1e+06]"},
        Refused{"{\"train_batch_size\": 0}",
                "1:22: train_batch_size = 0: must be in [1, 1073741824]"},
        Refused{
            "{\"model\": {\"type\": \"gpd\"}}",
            "1:20: model.type = \"gpd\": expected \"gpt\", \"mlp\" or \"hugging_face\"; did you "
            "mean \"gpt\"?"},
        Refused{"{\"optimizer\": {\"type\": \"adamw\"}}",
                "1:24: optimizer.type = \"adamw\": expected \"AdamW\", \"Adam\" or \"SGD\"; did "
                "you mean \"AdamW\"?"},
        Refused{"{\"scheduler\": {\"type\": \"OneCycle\"}}",
                "1:24: scheduler.type = \"OneCycle\": expected \"Constant\", "
                "\"WarmupCosineLR\", \"Cosine\", \"Linear\", \"WSD\" or \"InverseSqrt\""},
        Refused{"{\"pipeline\": {\"partition\": \"unifrom\"}}",
                "1:28: pipeline.partition = \"unifrom\": expected \"uniform\", \"parameters\", "
                "\"type:REGEX\", \"layer_cost\" or \"bounds\"; did you mean \"uniform\"?"},
        Refused{"{\"pipeline\": {\"partition\": \"type:\"}}",
                "1:28: pipeline.partition: expected a pattern after \"type:\""}));

TEST(ReadConfig, ABadPatternIsRefused) {
  EXPECT_TRUE(refusal("{\"pipeline\": {\"partition\": \"type:(a\"}}")
                  .starts_with("gpt.json:1:28: pipeline.partition = \"type:(a\": not a regular "
                               "expression: "));
  EXPECT_EQ(refusal("{\"pipeline\": {\"partition\": \"type:" + std::string(10000, '(') + "\"}}"),
            "gpt.json:1:28: pipeline.partition: the pattern is longer than 256 bytes");
  EXPECT_TRUE(refusal("{\"pipeline\": {\"checkpointable_layers\": \"(a\"}}")
                  .starts_with("gpt.json:1:40: pipeline.checkpointable_layers = \"(a\": not a "
                               "regular expression: "));
}

TEST(ReadConfig, AllProblemsAreReportedInTheOrderOfTheText) {
  EXPECT_EQ(refusal("{\"seed\": -1,\n"
                    " \"modell\": {},\n"
                    " \"optimizer\": {\"params\": {\"lr\": \"x\"}, \"typ\": 1}}"),
            "gpt.json:1:10: seed = -1: must be at least 0\n"
            "  note: gpt.json:2:2: unknown key \"modell\"; did you mean \"model\"?\n"
            "  note: gpt.json:3:33: optimizer.params.lr: expected a number, found \"x\"\n"
            "  note: gpt.json:3:39: unknown key \"typ\" in optimizer; did you mean \"type\"?");
}

TEST(ReadConfig, AWrongTypeDoesNotMakeItsParametersLookMisplaced) {
  EXPECT_EQ(refusal(R"({"optimizer": {"type": "Adagrad", "params": {"momentum": 0.9}}})"),
            "gpt.json:1:24: optimizer.type = \"Adagrad\": expected \"AdamW\", \"Adam\" or \"SGD\"");
}

TEST(ReadConfig, ManyProblemsAreCutShort) {
  std::string text = "{\"k0\": 0";
  for (int i = 1; i < 50000; ++i) text += str(", \"k", i, "\": 0");
  const std::string message = refusal(text + "}");
  EXPECT_LT(message.size(), 4000u);
  EXPECT_TRUE(message.ends_with("there may be more problems; only the first ones are listed"));
}

TEST(ReadConfig, NullIsNoName) {
  EXPECT_EQ(parse(R"({"schedule": {"file": null}})").schedule, ScheduleConfig{});
  EXPECT_EQ(parse(R"({"schedule": {"name": null, "file": "x.csv"}})").schedule.file, "x.csv");
}

TEST(ReadConfig, ReadsFiles) {
  const std::string file = testing::TempDir() + "penstock_read_config_test.json";
  std::ofstream(file) << "{\"seed\": 3, \"sed\": 4}";
  EXPECT_EQ(message_of([&] { read_config(file); }),
            file + ":1:13: unknown key \"sed\"; did you mean \"seed\"?");
  std::ofstream(file) << "{\"seed\": 3}";
  EXPECT_EQ(read_config(file).config.seed, 3);
  std::remove(file.c_str());
}

TEST(ReadConfig, SaysWhyAFileCannotBeRead) {
  EXPECT_EQ(message_of([] { read_config("/nowhere/gpt.json"); }),
            "config \"/nowhere/gpt.json\": cannot be read: No such file or directory");
  EXPECT_EQ(message_of([] { read_config("/"); }), "config \"/\": cannot be read: Is a directory");
  EXPECT_EQ(message_of([] { read_config("/dev/zero"); }),
            "config \"/dev/zero\": is a device, which never ends");
  const testing_support::TemporaryFolder folder;
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  EXPECT_EQ(message_of([&] { read_config(folder.file("pipe")); }),
            "config \"" + folder.file("pipe") + "\": cannot be read: a pipe that nobody writes to");
}

}  // namespace
}  // namespace penstock::config
