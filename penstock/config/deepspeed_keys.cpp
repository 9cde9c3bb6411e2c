#include "penstock/config/deepspeed_keys.h"

#include <array>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>

#include "penstock/core/check.h"
#include "penstock/core/text.h"

namespace penstock::config {
namespace {

constexpr std::string_view kWholeModel = "a model is of one type";
constexpr std::string_view kUseTypes = "use bf16.enabled or fp16.enabled";
constexpr std::string_view kMasters = "masters and the optimizer's state are in float32";
constexpr std::string_view kTimes = "times are measured when they are asked for";
constexpr std::string_view kUseReport = "use run.timeline_steps and penstock report";
constexpr std::string_view kCount = "a step has as many microbatches as the batch sizes say";
constexpr std::string_view kMean = "gradients are those of the mean over a step's samples";
constexpr std::string_view kOneFile = "weights are saved whole, as safetensors (run.save)";
constexpr std::string_view kWire = "how data-parallel ranks exchange is fixed, and overlapped";
constexpr std::string_view kInHostMemory =
    "they are in host memory anyway, where ranks compute on the CPU";
constexpr std::string_view kTwoRuns =
    "one run of states is updated while the next is read and the last one written";

constexpr auto kForeign = std::to_array<ForeignKeys>({
    {"managed_gradient_accumulation", "true", kCount},
    {"prescale_gradients gradient_predivide_factor gradient_allreduce_op", "false 1 \"mean\"",
     kMean},
    {"communication_data_type", "null \"fp32\"",
     "gradients travel in the type in which they are added", "use data_types.grad_accum_dtype"},
    {"seq_parallel_communication_data_type", "*", "there is no sequence parallelism"},
    {"disable_allgather", "false", "updated parameters are gathered after every step"},
    {"zero_allow_untested_optimizer zero_force_ds_cpu_optimizer", "*",
     "every optimizer that penstock has runs under every ZeRO stage"},
    {"dump_state", "false", "config.resolved.json in the run directory has all values"},
    {"wall_clock_breakdown", "false", kTimes, kUseReport},
    {"memory_breakdown", "false", "memory is told before a run", "use penstock memory"},
    {"dataloader_drop_last", "*", "samples are drawn from the text, which has no last batch"},
    {"disable_python_gc", "*", "no Python runs in a training rank"},
    {"log_level", "*", "there are no levels of messages"},
    {"torch_autocast.enabled", "false", kWholeModel, kUseTypes},
    {"torch_autocast.dtype torch_autocast.lower_precision_safe_modules", "*",
     "means nothing without torch_autocast.enabled"},
    {"sparse_gradients", "false", "gradients are dense"},

    {"optimizer.legacy_fusion optimizer.params.torch_adam optimizer.params.fused "
     "optimizer.params.foreach",
     "*", "the update is torch's fused one"},
    {"optimizer.params.adam_w_mode", "true", "weight decay is decoupled",
     "use optimizer.params.weight_decay 0, where both are the same"},
    {"optimizer.params.bias_correction", "true", "AdamW corrects its means for their start"},
    {"optimizer.params.amsgrad optimizer.params.maximize optimizer.params.nesterov", "false",
     "the update has no such variant"},
    {"optimizer.params.dampening", "0", "momentum is not dampened"},
    {"optimizer.params.max_grad_norm", "", "DeepSpeed refuses it, too", "use gradient_clipping"},
    {"scheduler.params.warmup_type", "\"linear\"", "the warm-up is linear",
     "write \"linear\", or leave it out"},
    {"scheduler.params.last_batch_iteration", "-1", "a run begins with step 1"},
    {"scheduler.params.warmup_min_lr", "", "a warm-up begins at a share of lr",
     "use warmup_min_ratio"},
    {"scheduler.params.warmup_max_lr", "", "a warm-up ends at lr", "use optimizer.params.lr"},

    {"fp16.auto_cast", "*", "floating inputs become fp16"},
    {"fp16.fp16_master_weights_and_grads bf16.bf16_master_weights_and_grads "
     "bf16.bf16_optimizer_states",
     "false", kMasters},
    {"bf16.immediate_grad_update", "*", "gradients are added as they come"},
    {"bf16.check_grad_overflow", "*", "a gradient that is not finite ends the run"},
    {"amp.enabled", "false", kWholeModel, kUseTypes},
    {"amp.*", "*", "means nothing without amp.enabled"},
    {"data_types.param_dtype data_types.buffer_dtype", "null \"fp32\"", kWholeModel, kUseTypes},
    {"data_types.keep_in_fp32_modules", "*", kWholeModel},

    {"pipeline.stages", "\"auto\"", "DeepSpeed passes it over; stages follow from the schedule",
     "use mesh.pipe"},
    {"pipeline.seed_layers", "*", "every layer has its own seed, always"},
    {"pipeline.pipe_partitioned pipeline.grad_partitioned", "*",
     "means nothing without tensor parallelism, which penstock lacks"},
    {"pipeline.use_reentrant", "*", "activations are computed again without a nested backward"},
    {"activation_checkpointing.partition_activations", "false",
     "activations are cut only under tensor parallelism, which penstock lacks"},
    {"activation_checkpointing.cpu_checkpointing", "false",
     "activations are where the rank computes"},
    {"activation_checkpointing.contiguous_memory_optimization "
     "activation_checkpointing.synchronize_checkpoint_boundary",
     "*", "changes nothing that is computed"},
    {"activation_checkpointing.number_checkpoints", "null",
     "layers are computed again in groups of a given length",
     "use pipeline.activation_checkpoint_interval"},
    {"activation_checkpointing.profile", "false", kTimes, kUseReport},

    {"checkpoint.tag_validation", "*", "weights are saved under no tag (run.save)"},
    {"checkpoint.load_universal", "false", "a run begins with fresh weights"},
    {"checkpoint.use_node_local_storage checkpoint.parallel_write.pipeline_stage "
     "checkpoint.checkpoint_serialization",
     "*", "each pipeline rank saves its own weights, as safetensors (run.save)"},
    {"checkpoint.writer.type checkpoint.writer.decoupled checkpoint.writer.io_buffer_size "
     "checkpoint.writer.io_buffer_double checkpoint.writer.data_parallel "
     "checkpoint.writer.io_multiplier",
     "*", "weights are written in one way"},

    {"zero_optimization.contiguous_gradients zero_optimization.reduce_scatter "
     "zero_optimization.use_multi_rank_bucket_allreduce zero_optimization.allgather_partitions "
     "zero_optimization.overlap_comm zero_optimization.round_robin_gradients "
     "zero_optimization.sub_group_size zero_optimization.parameter_alignment "
     "zero_optimization.legacy_stage1",
     "*", kWire},
    {"zero_optimization.allgather_bucket_size", "*",
     "parameters are gathered in the buckets of reduce_bucket_size"},
    {"zero_optimization.compute_grad_norm", "*", "the gradient norm is always computed"},
    {"zero_optimization.ignore_unused_parameters", "true",
     "parameters without a gradient stay as they are"},
    {"zero_optimization.load_from_fp32_weights zero_optimization.elastic_checkpoint "
     "zero_optimization.pipeline_loading_checkpoint",
     "*", "a run begins with fresh weights"},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save "
     "zero_optimization.stage3_gather_fp16_weights_on_model_save",
     "*", kOneFile},
    {"zero_optimization.offload_param.buffer_count zero_optimization.offload_param.buffer_size "
     "zero_optimization.offload_param.max_in_cpu zero_optimization.offload_param.pin_memory "
     "zero_optimization.cpu_offload_use_pin_memory",
     "*", "what is used next is read while one bucket of parameters is copied"},
    {"zero_optimization.cpu_offload", "false", "its word for it is another",
     "use zero_optimization.offload_optimizer.device"},
    {"zero_optimization.cpu_offload_params", "false", "its word for it is another",
     "use zero_optimization.offload_param.device"},
    {"zero_optimization.offload_optimizer.buffer_count "
     "zero_optimization.offload_optimizer.pin_memory "
     "zero_optimization.offload_optimizer.pipeline_read "
     "zero_optimization.offload_optimizer.pipeline_write "
     "zero_optimization.offload_optimizer.fast_init",
     "*", kTwoRuns},
    {"zero_optimization.offload_optimizer.ratio", "1", "all states are offloaded, or none",
     "leave it out"},
    {"zero_optimization.offload_optimizer.super_offload", "false",
     "the update is where the rank computes"},
    {"zero_optimization.stage3_param_persistence_threshold "
     "zero_optimization.stage3_model_persistence_threshold "
     "zero_optimization.stage3_max_reuse_distance "
     "zero_optimization.stage3_module_granularity_threshold "
     "zero_optimization.stage3_use_all_reduce_for_fetch_params "
     "zero_optimization.stage3_allgather_sequential zero_optimization.memory_efficient_linear "
     "zero_optimization.override_module_apply zero_optimization.log_trace_cache_warnings "
     "zero_optimization.enable_sanity_checks zero_optimization.leaf_module.classes "
     "zero_optimization.leaf_module.names zero_optimization.leaf_module.name_suffixes",
     "*", "which parameters come and go follows from the last step's uses and the budget"},
    {"zero_optimization.zero_hpz_partition_size", "1", "shards are over all data-parallel ranks"},
    {"zero_optimization.zero_quantized_weights "
     "zero_optimization.zero_quantized_nontrainable_weights "
     "zero_optimization.zero_quantized_gradients",
     "false", "nothing is quantized"},

    {"aio.*", "*", "files are mapped: the kernel reads and writes them"},
    {"autotuning.enabled", "false", "nothing is tuned by trial",
     "use penstock schedule compare and penstock simulate"},
    {"autotuning.*", "*", "means nothing without autotuning.enabled"},
    {"comms_logger.enabled flops_profiler.enabled", "false", kTimes, kUseReport},
    {"comms_logger.*", "*", "means nothing without comms_logger.enabled"},
    {"flops_profiler.*", "*", "means nothing without flops_profiler.enabled"},
    {"tensorboard.enabled wandb.enabled csv_monitor.enabled comet.enabled", "false",
     "the run directory has the metrics, as JSON lines, and the curves"},
    {"tensorboard.*", "*", "means nothing without tensorboard.enabled"},
    {"wandb.*", "*", "means nothing without wandb.enabled"},
    {"csv_monitor.*", "*", "means nothing without csv_monitor.enabled"},
    {"comet.*", "*", "means nothing without comet.enabled"},
    {"elasticity.enabled", "false", "the number of ranks is fixed during a run"},
    {"elasticity.*", "*", "means nothing without elasticity.enabled"},
    {"curriculum_learning.enabled data_efficiency.enabled progressive_layer_drop.enabled", "false",
     "every step trains the whole model on whole samples"},
    {"curriculum_learning.*", "*", "means nothing without curriculum_learning.enabled"},
    {"data_efficiency.*", "*", "means nothing without data_efficiency.enabled"},
    {"progressive_layer_drop.*", "*", "means nothing without progressive_layer_drop.enabled"},
    {"compression_training.*", "", "nothing is compressed"},
    {"tensor_parallel.*", "", "there is no tensor parallelism", "use mesh.pipe and mesh.data"},
});

struct Difference {
  std::string_view path;
  std::string_view text;
  std::string_view value = {};  // Only of this one; "": of each.
};

// Of keys that fields.h has.
constexpr auto kDifferences = std::to_array<Difference>({
    {"gradient_clipping",
     "the norm is that of all stages; DeepSpeed's, in a pipeline without ZeRO, that of stage 0"},
    {"pipeline.partition", "cuts the layers; DeepSpeed passes it over"},
    {"scheduler.params.warmup_num_steps",
     "the warm-up is linear; DeepSpeed's is logarithmic unless warmup_type is \"linear\""},
    {"zero_optimization.offload_optimizer.device", kInHostMemory, "\"cpu\""},
    {"zero_optimization.offload_param.device", kInHostMemory, "\"cpu\""},
});

struct Table {
  std::map<std::string, const ForeignKeys*, std::less<>> keys;
  std::map<std::string, const ForeignKeys*, std::less<>> prefixes;  // Of "aio.*": "aio".
  std::map<std::string, std::set<std::string>, std::less<>> names;  // By section.
};

// Each part of a path into the section that it stands in.
void add_names(Table& table, const std::string& path) {
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string section = begin == 0 ? "" : path.substr(0, begin - 1);
    table.names[section].insert(path.substr(begin, end - begin));
    begin = end + 1;
  }
}

Table make_table() {
  constexpr std::string_view kAll = ".*";
  Table table;
  for (const ForeignKeys& row : kForeign) {
    for (std::string path : split(row.paths, ' ')) {
      const bool prefix = path.ends_with(kAll);
      if (prefix) path.resize(path.size() - kAll.size());
      const bool fresh = (prefix ? table.prefixes : table.keys).emplace(path, &row).second;
      PENSTOCK_CHECK(fresh, "DeepSpeed's key twice in the table: ", path);
      add_names(table, path);
      if (prefix) table.names[path];
    }
  }
  return table;
}

const Table& table() {
  static const Table made = make_table();
  return made;
}

std::optional<double> as_number(std::string_view text) {
  const std::string copy(text);
  char* end = nullptr;
  const double value = std::strtod(copy.c_str(), &end);
  return copy.empty() || *end != '\0' ? std::nullopt : std::optional(value);
}

bool same_value(std::string_view a, std::string_view b) {
  return a == b || (as_number(a) && as_number(a) == as_number(b));
}

}  // namespace

const ForeignKeys* find_foreign(std::string_view path) {
  const auto found = table().keys.find(path);
  if (found != table().keys.end()) return found->second;
  for (std::size_t dot = path.rfind('.'); dot != std::string_view::npos && dot > 0;
       dot = path.rfind('.', dot - 1)) {
    const auto prefix = table().prefixes.find(path.substr(0, dot));
    if (prefix != table().prefixes.end()) return prefix->second;
  }
  return nullptr;
}

bool is_taken(const ForeignKeys& row, const json::Value& value) {
  if (row.taken == "*") return true;
  for (const std::string& taken : split(row.taken, ' ')) {
    if (same_value(taken, json::text_of(value))) return true;
  }
  return false;
}

std::string refusal(const ForeignKeys& row) {
  return str(row.fact, "; ", row.instead.empty() ? "leave it out" : row.instead);
}

bool is_foreign_section(std::string_view path) { return table().names.contains(path); }

std::vector<std::string> foreign_names(std::string_view section) {
  const auto found = table().names.find(section);
  if (found == table().names.end()) return {};
  return {found->second.begin(), found->second.end()};
}

std::string_view difference_of(std::string_view path, const json::Value& value) {
  for (const Difference& difference : kDifferences) {
    if (difference.path != path) continue;
    if (difference.value.empty() || difference.value == json::text_of(value)) {
      return difference.text;
    }
  }
  return {};
}

const std::vector<AbsentKey>& absent_keys() {
  static const std::vector<AbsentKey> keys = {
      {"gradient_clipping", "", "absent: nothing is clipped; DeepSpeed 0.19 then clips at 1.0"},
      {"scheduler.params.warmup_num_steps", "scheduler.params.total_num_steps",
       "absent: there is no warm-up; DeepSpeed's then has 1000 steps"},
  };
  return keys;
}

std::vector<std::string> deepspeed_paths() {
  std::vector<std::string> paths;
  for (const auto& [path, row] : table().keys) paths.push_back(path);
  for (const auto& [path, row] : table().prefixes) paths.push_back(path);
  for (const Difference& difference : kDifferences) paths.emplace_back(difference.path);
  for (const AbsentKey& key : absent_keys()) paths.emplace_back(key.path);
  return paths;
}

}  // namespace penstock::config
