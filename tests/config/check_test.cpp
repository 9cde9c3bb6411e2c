#include "penstock/plan/config/check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>

#include "penstock/config/read.h"
#include "penstock/core/text.h"
#include "penstock/plan/config/deepspeed_keys.h"
#include "penstock/plan/config/keys.h"
#include "tests/support/message_of.h"

namespace penstock::config {
namespace {

using testing_support::message_of;

// {"fp16": {"enabled": true}} for "fp16.enabled" and "true".
std::string nested(const std::string& path, const std::string& value) {
  const std::vector<std::string> keys = split(path, '.');
  std::string text;
  for (const std::string& key : keys) text += "{" + json_quote(key) + ": ";
  return text + value + std::string(keys.size(), '}');
}

std::string any_schedule(std::string_view) { return ""; }

constexpr std::array<Dialect, 2> kTakers = {Dialect::Train, Dialect::Initialize};

std::vector<Finding> check(const std::string& text, Dialect dialect = Dialect::Train) {
  return check_config(dialect, text, "ds.json");
}

// Of keys that are there.
std::string check_lines(const std::string& text, Dialect dialect = Dialect::Train) {
  std::string lines;
  for (const Finding& f : check(text, dialect)) {
    if (f.origin.line == 0) continue;
    lines += str(f.origin.line, ":", f.origin.column, " ", f.key, " ", to_string(f.verdict),
                 f.why.empty() ? "" : " | ", f.why, "\n");
  }
  return lines;
}

bool refuses(const std::string& text, Dialect dialect = Dialect::Train) {
  const std::vector<Finding> findings = check(text, dialect);
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& f) { return f.verdict == Verdict::Refused; });
}

// What DeepSpeed 0.19 reads of a file for pipelines and ZeRO: sections, each with its keys.
struct Section {
  std::string name;
  std::string keys;
};
const std::vector<Section> kDeepSpeedReads = {
    {"",
     "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps "
     "managed_gradient_accumulation steps_per_print gradient_clipping prescale_gradients "
     "gradient_predivide_factor gradient_allreduce_op communication_data_type "
     "seq_parallel_communication_data_type disable_allgather zero_allow_untested_optimizer "
     "zero_force_ds_cpu_optimizer dump_state wall_clock_breakdown memory_breakdown "
     "dataloader_drop_last disable_python_gc log_level"},
    {"torch_autocast", "enabled dtype lower_precision_safe_modules"},
    {"optimizer", "type legacy_fusion"},
    {"optimizer.params", "lr betas eps weight_decay momentum torch_adam adam_w_mode max_grad_norm"},
    {"scheduler", "type"},
    {"scheduler.params",
     "total_num_steps warmup_num_steps warmup_min_ratio cos_min_ratio warmup_type warmup_min_lr "
     "warmup_max_lr"},
    {"fp16",
     "enabled auto_cast loss_scale initial_scale_power loss_scale_window hysteresis "
     "consecutive_hysteresis min_loss_scale fp16_master_weights_and_grads"},
    {"bf16",
     "enabled immediate_grad_update check_grad_overflow bf16_master_weights_and_grads "
     "bf16_optimizer_states"},
    {"data_types", "grad_accum_dtype param_dtype buffer_dtype keep_in_fp32_modules"},
    {"pipeline",
     "stages partition seed_layers activation_checkpoint_interval pipe_partitioned "
     "grad_partitioned use_reentrant"},
    {"activation_checkpointing",
     "partition_activations cpu_checkpointing contiguous_memory_optimization number_checkpoints "
     "synchronize_checkpoint_boundary profile"},
    {"checkpoint",
     "tag_validation load_universal use_node_local_storage parallel_write.pipeline_stage "
     "checkpoint_serialization"},
    {"checkpoint.writer",
     "type decoupled io_buffer_size io_buffer_double data_parallel io_multiplier"},
    {"zero_optimization",
     "stage contiguous_gradients reduce_scatter reduce_bucket_size use_multi_rank_bucket_allreduce "
     "allgather_partitions allgather_bucket_size overlap_comm compute_grad_norm "
     "load_from_fp32_weights elastic_checkpoint sub_group_size stage3_prefetch_bucket_size "
     "stage3_param_persistence_threshold stage3_model_persistence_threshold "
     "stage3_max_live_parameters stage3_max_reuse_distance "
     "stage3_gather_16bit_weights_on_model_save stage3_module_granularity_threshold "
     "stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential ignore_unused_parameters "
     "round_robin_gradients parameter_alignment zero_hpz_partition_size zero_quantized_weights "
     "zero_quantized_nontrainable_weights zero_quantized_gradients memory_efficient_linear "
     "pipeline_loading_checkpoint override_module_apply log_trace_cache_warnings "
     "enable_sanity_checks legacy_stage1 cpu_offload cpu_offload_params "
     "cpu_offload_use_pin_memory stage3_gather_fp16_weights_on_model_save"},
    {"zero_optimization.offload_param",
     "device nvme_path buffer_count buffer_size max_in_cpu pin_memory"},
    {"zero_optimization.offload_optimizer",
     "device nvme_path buffer_count pin_memory pipeline_read pipeline_write fast_init ratio "
     "super_offload"},
    {"zero_optimization.leaf_module", "classes names name_suffixes"},
};

std::set<std::string> own_paths(Dialect dialect) {
  std::set<std::string> paths;
  for (const KeyInfo& key : known_keys(dialect)) paths.insert(key.path);
  return paths;
}

// Says something of its own about the key, or about a section inside a section that has it.
void expect_answered(Dialect dialect, const std::string& path) {
  const std::string lines = check_lines(nested(path, "true"), dialect);
  const std::string section = path.substr(0, path.rfind('.'));
  const bool is_inside = section.find('.') != std::string::npos;
  EXPECT_TRUE(lines.find(" " + path + " ") != std::string::npos ||
              (is_inside && lines.find(" " + section + " ") != std::string::npos))
      << path << ": " << lines;
  EXPECT_EQ(lines.find("unknown key"), std::string::npos) << lines;
}

TEST(ConfigCheck, KnowsEveryKeyThatDeepSpeedReads) {
  for (const Section& section : kDeepSpeedReads) {
    for (const std::string& key : split(section.keys, ' ')) {
      for (const Dialect dialect : kTakers) {
        expect_answered(dialect, section.name.empty() ? key : section.name + "." + key);
      }
    }
  }
}

TEST(ConfigCheck, InitializeKnowsEveryKeyOfTrain) {
  for (const std::string& path : own_paths(Dialect::Train)) {
    expect_answered(Dialect::Initialize, path);
  }
}

TEST(ConfigCheck, TheTableOfDeepSpeedsKeysHasNoneThatPenstockHas) {
  for (const Dialect dialect : kTakers) {
    const std::set<std::string> own = own_paths(dialect);
    for (const std::string& path : deepspeed_paths(dialect)) {
      EXPECT_EQ(own.contains(path),
                find_foreign(dialect, path) == nullptr && !is_foreign_section(dialect, path))
          << path << ": once a dialect has a key, its row in deepspeed_rows.cpp goes";
    }
  }
}

TEST(ConfigCheck, SaysUsedDifferentOrRefusedOfEachKeyAndWhere) {
  EXPECT_EQ(check_lines(R"({
  "train_batch_size": 32, "gradient_clipping": 1,
  "optimizer": {"type": "AdamW",
                "params": {"lr": 0, "torch_adam": true, "max_grad_norm": 1.0}},
  // Both of pipelines.
  "pipeline": {"stages": 2, "seed_layers": false},
  "mesh": {"pipe": 0},
  "tensor_parallel": {"autotp_size": 2}
})"),
            "2:3 train_batch_size used\n"
            "2:27 gradient_clipping different | the norm is that of all stages; DeepSpeed's, in a "
            "pipeline without ZeRO, that of stage 0\n"
            "3:17 optimizer.type used\n"
            "4:28 optimizer.params.lr used\n"
            "4:37 optimizer.params.torch_adam different | the update is torch's fused one\n"
            "4:74 optimizer.params.max_grad_norm refused | = 1.0: DeepSpeed refuses it, too; use "
            "gradient_clipping\n"
            "6:26 pipeline.stages refused | = 2: DeepSpeed passes it over; stages follow from the "
            "schedule; use mesh.pipe\n"
            "6:29 pipeline.seed_layers different | every layer has its own seed, always\n"
            "7:20 mesh.pipe refused | = 0: must be in [1, 65536]\n"
            "8:38 tensor_parallel.autotp_size refused | = 2: how many ranks share layers is an "
            "axis of the mesh; use mesh.tensor\n");
}

TEST(ConfigCheck, SaysTheSameOfInitialize) {
  EXPECT_EQ(check_lines(R"({
  "train_batch_size": 32, "gradient_clipping": 1, "seed": 1,
  "optimizer": {"type": "MuAdam",
                "params": {"lr": 0, "torch_adam": true, "max_grad_norm": 1.0, "amsgrad": true}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 2, "warmup_type": "log"}},
  "pipeline": {"stages": 2, "partition": "uniform"},
  "zero_optimization": {"stage": 4, "stage3_param_persistence_threshold": 1e4,
                        "offload_param": {"device": "nvme"}},
  "schedule": "zbv", "data_types": {"grad_accum_dtype": "fp32"}, "model": {"layers": 2},
  "tensor_parallel": {"autotp_size": 2, "tp_overlap_comm": true}, "mesh": {"tensor": 2}
})",
                        Dialect::Initialize),
            "2:3 train_batch_size used\n"
            "2:27 gradient_clipping different | the norm is that of all stages; DeepSpeed's, in a "
            "pipeline without ZeRO, that of stage 0\n"
            "2:59 seed refused | = 1: it is a key of penstock train; call torch.manual_seed()\n"
            "3:25 optimizer.type refused | = \"MuAdam\": torch.optim has none; give initialize() "
            "an optimizer\n"
            "4:28 optimizer.params.lr used\n"
            "4:37 optimizer.params.torch_adam different | the update is that of a class of "
            "torch.optim\n"
            "4:74 optimizer.params.max_grad_norm refused | = 1.0: DeepSpeed refuses it, too; use "
            "gradient_clipping\n"
            "4:79 optimizer.params.amsgrad used\n"
            "5:17 scheduler.type used\n"
            "5:48 scheduler.params.warmup_num_steps used\n"
            "5:71 scheduler.params.warmup_type used\n"
            "6:16 pipeline.stages different | must be num_stages of the PipelineModule, or "
            "\"auto\"\n"
            "6:42 pipeline.partition refused | = \"uniform\": a PipelineModule says it itself; use "
            "its argument partition_method\n"
            "7:34 zero_optimization.stage refused | = 4: must be in [0, 3]\n"
            "7:37 zero_optimization.stage3_param_persistence_threshold used\n"
            "8:43 zero_optimization.offload_param.device used\n"
            "9:15 schedule.name different | has an effect only with a model that is a "
            "PipelineModule\n"
            "9:37 data_types.grad_accum_dtype different | has no effect: bf16.enabled is false and "
            "fp16.enabled is false; it needs bf16.enabled = true or fp16.enabled = true\n"
            "9:86 model.layers refused | = 2: it is a key of penstock train; leave it out\n"
            "10:38 tensor_parallel.autotp_size refused | = 2: a module is computed whole on each "
            "rank; train a Hugging Face folder with penstock.Trainer and mesh.tensor, or divide "
            "modules by torch's DTensor in penstock.pipelining\n"
            "10:41 tensor_parallel.tp_overlap_comm different | means nothing without "
            "tensor_parallel.autotp_size\n"
            "10:86 mesh.tensor refused | = 2: it is a key of penstock train, whose models "
            "penstock.Trainer trains; take that, or leave it out\n");
}

TEST(ConfigCheck, InitializeTakesWhatIsLeftOpen) {
  const std::string text = R"({"train_batch_size": "auto", "fp16": null, "tensorboard": null,
      "zero_optimization": {"stage": "auto", "overlap_comm": null, "leaf_module": "auto"}})";
  EXPECT_FALSE(refuses(text, Dialect::Initialize));
  EXPECT_TRUE(refuses(text, Dialect::Train));
  EXPECT_TRUE(refuses(R"({"optimizer": {"params": {"lr": "auto"}}})", Dialect::Initialize));
  EXPECT_TRUE(refuses(R"({"optimiser": null})", Dialect::Initialize));
}

TEST(ConfigCheck, InitializeRefusesWhatDoesNotFitTogether) {
  const auto read = [](const std::string& text) {
    return message_of(
        [&] { parse_initialize_config({.name = "ds.json", .text = text}, any_schedule); });
  };
  EXPECT_EQ(read(R"({"train_batch_size": 1, "schedule": {"file": "x.csv"}})"), "no error");
  EXPECT_EQ(read(R"({"gradient_accumulation_steps": 1})"),
            "ds.json: train_batch_size or train_micro_batch_size_per_gpu is needed, with or "
            "without gradient_accumulation_steps");
  EXPECT_EQ(read(R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})"),
            "ds.json:1:22: fp16.enabled = true: bf16.enabled is true, too; take one of them");
}

TEST(ConfigCheck, TakesWhatAsksForNothing) {
  EXPECT_EQ(check_lines(R"({"tensorboard": {"enabled": false, "job_name": "x"}})"),
            "1:18 tensorboard.enabled different | the run directory has the metrics, as JSON "
            "lines\n"
            "1:36 tensorboard.job_name different | means nothing without tensorboard.enabled\n");
  EXPECT_FALSE(refuses(R"({"gradient_predivide_factor": 1.0})"));
  EXPECT_FALSE(refuses(R"({"gradient_predivide_factor": 1})"));
  EXPECT_TRUE(refuses(R"({"gradient_predivide_factor": 2.0})"));
  EXPECT_FALSE(refuses(R"({"tensorboard": {}})"));
  EXPECT_FALSE(refuses(R"({"data_types": {"param_dtype": null, "buffer_dtype": "fp32"}})"));
  EXPECT_TRUE(refuses(R"({"data_types": {"param_dtype": "fp16"}})"));
  EXPECT_TRUE(refuses(R"({"tensorboard": {"enabled": "false"}})"));
}

TEST(ConfigCheck, InitializeHasBoardsAndNoComet) {
  const std::string sizes = R"("train_batch_size": 1, )";
  EXPECT_FALSE(refuses("{" + sizes + R"("tensorboard": {"enabled": true, "job_name": "a"},
      "csv_monitor": {"enabled": true, "output_path": "b"}, "wandb": {"enabled": true,
      "group": null, "team": "c", "project": "d"}})",
                       Dialect::Initialize));
  EXPECT_TRUE(refuses("{" + sizes + R"("comet": {"enabled": true}})", Dialect::Initialize));
  EXPECT_TRUE(
      refuses("{" + sizes + R"("tensorboard": {"enabled": true, "job": 1}})", Dialect::Initialize));
}

TEST(ConfigCheck, SaysOfOffloadedStatesWhereTheyAre) {
  EXPECT_EQ(check_lines(R"({"zero_optimization": {"offload_optimizer": {
  "device": "nvme", "nvme_path": "/fast", "buffer_count": 4, "pin_memory": true, "ratio": 0.5}}})"),
            "2:3 zero_optimization.offload_optimizer.device used\n"
            "2:21 zero_optimization.offload_optimizer.nvme_path used\n"
            "2:43 zero_optimization.offload_optimizer.buffer_count different | one run of states "
            "is updated while the next is read and the last one written\n"
            "2:62 zero_optimization.offload_optimizer.pin_memory different | one run of states is "
            "updated while the next is read and the last one written\n"
            "2:91 zero_optimization.offload_optimizer.ratio refused | = 0.5: all states are "
            "offloaded, or none; leave it out\n");
  EXPECT_EQ(check_lines(R"({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}})"),
            "1:46 zero_optimization.offload_optimizer.device different | they are in host memory "
            "anyway, where ranks compute on the CPU\n");
}

TEST(ConfigCheck, SaysOfOffloadedParametersWhereTheyAre) {
  EXPECT_EQ(check_lines(R"({"zero_optimization": {"stage": 3, "offload_param": {
  "device": "nvme", "nvme_path": "/fast", "max_in_cpu": 1e9}}})"),
            "1:24 zero_optimization.stage used\n"
            "2:3 zero_optimization.offload_param.device used\n"
            "2:21 zero_optimization.offload_param.nvme_path used\n"
            "2:43 zero_optimization.offload_param.max_in_cpu different | what is used next is read "
            "while one bucket of parameters is copied\n");
}

TEST(ConfigCheck, AnUnknownKeyIsRefusedWithTheNearestOne) {
  EXPECT_EQ(check_lines(R"({"grandient_accumulation_steps": 2,
                            "zero_optimization": {"overlap_com": true},
                            "data_types": {"parm_dtype": null}, "bogusbogus": 1})"),
            "1:2 grandient_accumulation_steps refused | unknown key "
            "\"grandient_accumulation_steps\"; did you mean \"gradient_accumulation_steps\"?\n"
            "2:51 zero_optimization.overlap_com refused | unknown key \"overlap_com\" in "
            "zero_optimization; did you mean \"overlap_comm\"?\n"
            "3:44 data_types.parm_dtype refused | unknown key \"parm_dtype\" in data_types; did "
            "you mean \"param_dtype\"?\n"
            "3:65 bogusbogus refused | unknown key \"bogusbogus\"\n");
}

TEST(ConfigCheck, ASectionIsAnObjectAndADotIsNoSection) {
  EXPECT_EQ(check_lines(R"({"aio": 3, "data_types.param_dtype": null})"),
            "1:9 aio refused | expected an object, found 3\n"
            "1:12 data_types.param_dtype refused | unknown key \"data_types.param_dtype\"\n");
}

TEST(ConfigCheck, AbsentKeysThatMeanSomethingElseToDeepSpeedAreNamed) {
  const auto absent = [](const std::string& text) {
    std::string keys;
    for (const Finding& f : check(text)) {
      if (f.origin.line > 0) continue;
      EXPECT_EQ(f.verdict, Verdict::Different);
      EXPECT_EQ(to_string(f.origin), "ds.json");
      keys += f.key + " ";
    }
    return keys;
  };
  EXPECT_EQ(absent("{}"), "gradient_clipping ");
  EXPECT_EQ(absent(R"({"gradient_clipping": 0})"), "");
  EXPECT_EQ(absent(R"({"gradient_clipping": 1, "scheduler": {"type": "WarmupCosineLR",
                       "params": {"warmup_num_steps": 2}}})"),
            "");
  EXPECT_EQ(absent(R"({"gradient_clipping": 1, "zero_optimization": {"stage": 3}})"),
            "zero_optimization.stage3_param_persistence_threshold ");
}

// Of validate(), which the findings leave out.
bool is_about_several_keys(const std::string& error) {
  return error.find("needs") != std::string::npos || error.find("divide") != std::string::npos;
}

// As the dialect reads the text.
std::string error_of(Dialect dialect, const std::string& text) {
  return message_of([&] {
    if (dialect == Dialect::Train) {
      parse_config(text, "ds.json");
    } else {
      parse_initialize_config({.name = "ds.json", .text = text}, any_schedule,
                              BatchSizes::NotNeeded);
    }
  });
}

class ConfigCheckFor : public testing::TestWithParam<Dialect> {};

TEST_P(ConfigCheckFor, RefusesExactlyWhatTheReaderRefuses) {
  std::set<std::string> paths = own_paths(GetParam());
  for (const std::string& path : deepspeed_paths(GetParam())) paths.insert(path);
  for (const std::string& path : paths) {
    for (const char* value : {"true", "false", "null", "1", "0", "-1", "2.5", "\"fp32\"",
                              "\"none\"", "\"linear\"", "[]", "{}", "{\"x\": 1}", "\"auto\""}) {
      const std::string text = nested(path, value);
      std::string why;
      for (const Finding& f : check(text, GetParam())) {
        if (f.verdict == Verdict::Refused) why = f.why;
      }
      const std::string error = error_of(GetParam(), text);
      if (why.empty()) {
        EXPECT_TRUE(error == "no error" || is_about_several_keys(error)) << text << ": " << error;
      } else {
        EXPECT_NE(error.find(why), std::string::npos) << text << ": " << why << " / " << error;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dialects, ConfigCheckFor, testing::ValuesIn(kTakers));

TEST(ConfigCheck, BrokenJsonIsAnErrorWithItsPlace) {
  EXPECT_EQ(message_of([] { check("{\"fp16\": {\"enabled\": }}"); }).substr(0, 14),
            "ds.json:1:22: ");
  EXPECT_EQ(message_of([] { check("{\"seed\": 1, \"seed\": 2}"); }),
            "ds.json:1:13: duplicate key \"seed\"");
}

TEST(ConfigCheck, AFileOfThousandsOfKeysIsNoConfiguration) {
  std::string text = "{";
  for (std::size_t i = 0; i <= kFindingsMax; ++i) text += str(i == 0 ? "" : ",", "\"k", i, "\":1");
  EXPECT_EQ(message_of([&] { check(text + "}"); }),
            "ds.json: more than 1000 keys; is it the right file?");
}

}  // namespace
}  // namespace penstock::config
