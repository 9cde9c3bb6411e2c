#include "penstock/plan/config/deepspeed_rows.h"

#include <array>

namespace penstock::config {
namespace {

constexpr std::string_view kWholeModel = "a model is of one type";
constexpr std::string_view kUseTypes = "use bf16.enabled or fp16.enabled";
constexpr std::string_view kMasters = "masters and the optimizer's state are in float32";
constexpr std::string_view kTimes = "times are measured when they are asked for";
constexpr std::string_view kUseReport = "use run.timeline_steps and penstock report";
constexpr std::string_view kMicrobatchCount =
    "a step has as many microbatches as the batch sizes say";
constexpr std::string_view kMean = "gradients are those of the mean over a step's samples";
constexpr std::string_view kOneFile = "weights are saved whole, as safetensors (run.save)";
constexpr std::string_view kWire = "how data-parallel ranks exchange is fixed, and overlapped";
constexpr std::string_view kInHostMemory =
    "they are in host memory anyway, where ranks compute on the CPU";
constexpr std::string_view kTwoRuns =
    "one run of states is updated while the next is read and the last one written";
constexpr std::string_view kPaging =
    "which parameters come and go follows from the last step's uses and the budget";
constexpr std::string_view kAllShare = "shards are over all data-parallel ranks";
constexpr std::string_view kNotQuantized = "nothing is quantized";
constexpr std::string_view kAsLayersGive = "stages send what their layers give, as it is";

// Reasons in the rows of penstock.initialize.
constexpr std::string_view kNoTimes = "an engine measures neither times nor memory";
constexpr std::string_view kUseProfiler = "use torch.profiler";
constexpr std::string_view kOfTrain = "it is a key of penstock train";
constexpr std::string_view kOfModule = "a PipelineModule says it itself";
constexpr std::string_view kClass = "the update is that of a class of torch.optim";
constexpr std::string_view kAnyLayout = "a pipeline's checkpoint is loaded by any other layout";

constexpr auto kForeign = std::to_array<ForeignKeys>({
    {"seq_parallel_communication_data_type", "*", "values that ranks exchange keep their type"},
    {"disable_allgather", "false", "updated parameters are gathered after every step"},
    {"torch_autocast.enabled", "false", kWholeModel, kUseTypes},
    {"torch_autocast.dtype torch_autocast.lower_precision_safe_modules", "*",
     "means nothing without torch_autocast.enabled"},
    {"sparse_gradients", "false", "gradients are dense"},
    {"optimizer.params.max_grad_norm", "", "DeepSpeed refuses it, too", "use gradient_clipping"},
    {"fp16.fp16_master_weights_and_grads bf16.bf16_master_weights_and_grads "
     "bf16.bf16_optimizer_states",
     "false", kMasters},
    {"bf16.immediate_grad_update", "*", "gradients are added as they come"},
    {"amp.enabled", "false", kWholeModel, kUseTypes},
    {"amp.*", "*", "means nothing without amp.enabled"},
    {"data_types.param_dtype data_types.buffer_dtype", "null \"fp32\"", kWholeModel, kUseTypes},
    {"data_types.keep_in_fp32_modules", "*", kWholeModel},
    {"pipeline.pipe_partitioned pipeline.grad_partitioned", "*", kAsLayersGive},
    {"pipeline.use_reentrant", "*", "activations are computed again without a nested backward"},
    {"activation_checkpointing.partition_activations", "*",
     "activations are cut only where ranks share layers"},
    {"activation_checkpointing.cpu_checkpointing", "false",
     "activations are where the rank computes"},
    {"activation_checkpointing.contiguous_memory_optimization "
     "activation_checkpointing.synchronize_checkpoint_boundary",
     "*", "changes nothing that is computed"},
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
    {"zero_optimization.stage3_max_reuse_distance "
     "zero_optimization.stage3_module_granularity_threshold "
     "zero_optimization.stage3_use_all_reduce_for_fetch_params "
     "zero_optimization.stage3_allgather_sequential zero_optimization.memory_efficient_linear "
     "zero_optimization.override_module_apply zero_optimization.log_trace_cache_warnings "
     "zero_optimization.enable_sanity_checks zero_optimization.leaf_module.classes "
     "zero_optimization.leaf_module.names zero_optimization.leaf_module.name_suffixes",
     "*", kPaging},
    {"zero_optimization.zero_hpz_partition_size", "1", kAllShare},
    {"zero_optimization.mics_shard_size", "-1", kAllShare},
    {"zero_optimization.mics_hierarchical_params_gather", "false", kAllShare},
    {"zero_optimization.stage3_partition_stream_chunk_size", "*",
     "parameters are spread as their layers are made"},
    {"zero_optimization.zero_quantized_weights "
     "zero_optimization.zero_quantized_nontrainable_weights "
     "zero_optimization.zero_quantized_gradients",
     "false", kNotQuantized},
    {"zero_optimization.zeropp_loco_param.*", "", kNotQuantized},
    {"zero_optimization.zenflow.*", "", "all gradients are used in their own step"},
    {"zero_optimization.save_muon_momentum_buffer_in_memory", "false",
     "states of an optimizer are all in memory, or all in files"},
    {"autotuning.enabled", "false", "nothing is tuned by trial",
     "use penstock schedule compare and penstock simulate"},
    {"autotuning.*", "*", "means nothing without autotuning.enabled"},
    {"flops_profiler.*", "*", "means nothing without flops_profiler.enabled"},
    {"comet.*", "*", "means nothing without comet.enabled"},
    {"elasticity.enabled", "false", "the number of ranks is fixed during a run"},
    {"elasticity.*", "*", "means nothing without elasticity.enabled"},
    {"curriculum_learning.enabled data_efficiency.enabled progressive_layer_drop.enabled", "false",
     "every step trains the whole model on whole samples"},
    {"curriculum_learning.*", "*", "means nothing without curriculum_learning.enabled"},
    {"data_efficiency.*", "*", "means nothing without data_efficiency.enabled"},
    {"progressive_layer_drop.*", "*", "means nothing without progressive_layer_drop.enabled"},
    {"compression_training.*", "", "nothing is compressed"},
    {"comms_logger.*", "*", "means nothing without comms_logger.enabled"},
    {"zero_optimization.offload_param.buffer_count zero_optimization.offload_param.buffer_size "
     "zero_optimization.offload_param.max_in_cpu zero_optimization.offload_param.pin_memory",
     "*", "what is used next is read while one bucket of parameters is copied"},
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
    {"aio.*", "*", "files are mapped: the kernel reads and writes them"},
});

constexpr auto kForeignToTrain = std::to_array<ForeignKeys>({
    {"managed_gradient_accumulation", "true", kMicrobatchCount},
    {"prescale_gradients gradient_predivide_factor gradient_allreduce_op", "false 1 \"mean\"",
     kMean},
    {"communication_data_type", "null \"fp32\"",
     "gradients travel in the type in which they are added", "use data_types.grad_accum_dtype"},
    {"zero_allow_untested_optimizer zero_force_ds_cpu_optimizer", "*",
     "every optimizer that penstock has runs under every ZeRO stage"},
    {"dump_state", "false", "config.resolved.json in the run directory has all values"},
    {"wall_clock_breakdown", "false", kTimes, kUseReport},
    {"memory_breakdown", "false", "memory is told before a run", "use penstock memory"},
    {"dataloader_drop_last", "*", "samples are drawn from the text, which has no last batch"},
    {"disable_python_gc", "*", "no Python runs in a training rank"},
    {"log_level", "*", "there are no levels of messages"},
    {"optimizer.legacy_fusion optimizer.params.torch_adam optimizer.params.fused "
     "optimizer.params.foreach",
     "*", "the update is torch's fused one"},
    {"optimizer.params.bias_correction", "true", "Adam corrects its means for their start"},
    {"optimizer.params.maximize", "false", "the update has no such variant"},
    {"scheduler.params.last_batch_iteration", "-1", "a run begins with step 1"},
    {"scheduler.params.warmup_min_lr", "", "a warm-up begins at a share of lr",
     "use warmup_min_ratio"},
    {"scheduler.params.warmup_max_lr", "", "a warm-up ends at lr", "use optimizer.params.lr"},
    {"fp16.auto_cast", "*", "floating inputs become fp16"},
    {"bf16.check_grad_overflow", "*", "a gradient that is not finite ends the run"},
    {"pipeline.stages", "\"auto\"", "DeepSpeed passes it over; stages follow from the schedule",
     "use mesh.pipe"},
    {"pipeline.seed_layers", "*", "every layer has its own seed, always"},
    {"activation_checkpointing.number_checkpoints", "null",
     "layers are computed again in groups of a given length",
     "use pipeline.activation_checkpoint_interval"},
    {"activation_checkpointing.profile", "false", kTimes, kUseReport},
    {"checkpoint.tag_validation", "*", "a checkpoint is named by its step"},
    {"checkpoint.load_universal", "false", "a checkpoint is read by any layout"},
    {"checkpoint.use_node_local_storage", "false", "all ranks write to one directory"},
    {"checkpoint.parallel_write.pipeline_stage checkpoint.checkpoint_serialization", "*",
     "each rank writes a shard of its own, as safetensors"},
    {"checkpoint.writer.type checkpoint.writer.decoupled checkpoint.writer.io_buffer_size "
     "checkpoint.writer.io_buffer_double checkpoint.writer.data_parallel "
     "checkpoint.writer.io_multiplier",
     "*", "shards are written in one way"},
    {"zero_optimization.load_from_fp32_weights zero_optimization.elastic_checkpoint "
     "zero_optimization.pipeline_loading_checkpoint",
     "*", "a run begins with fresh weights"},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save "
     "zero_optimization.stage3_gather_fp16_weights_on_model_save",
     "*", kOneFile},
    {"zero_optimization.cpu_offload", "false", "its word for it is another",
     "use zero_optimization.offload_optimizer.device"},
    {"zero_optimization.cpu_offload_param zero_optimization.cpu_offload_params", "false",
     "its word for it is another", "use zero_optimization.offload_param.device"},
    {"zero_optimization.cpu_offload_use_pin_memory", "*",
     "what is used next is read while one bucket of parameters is copied"},
    {"comms_logger.enabled flops_profiler.enabled", "false", kTimes, kUseReport},
    {"tensorboard.enabled wandb.enabled csv_monitor.enabled", "false",
     "the run directory has the metrics, as JSON lines", "use python -m penstock.board RUN"},
    {"tensorboard.*", "*", "means nothing without tensorboard.enabled"},
    {"wandb.*", "*", "means nothing without wandb.enabled"},
    {"csv_monitor.*", "*", "means nothing without csv_monitor.enabled"},
    {"comet.enabled", "false", "the run directory has the metrics, as JSON lines"},
    {"tensor_parallel.autotp_size", "0 1", "how many ranks share layers is an axis of the mesh",
     "use mesh.tensor"},
    {"tensor_parallel.*", "*", "layers say themselves how ranks share them"},
});

constexpr auto kForeignToInitialize = std::to_array<ForeignKeys>({
    {"prescale_gradients gradient_predivide_factor", "*",
     "gradients are divided by the number of replicas before they are added"},
    {"communication_data_type", "null \"fp32\"",
     "gradients travel in the type in which they are added, that of the parameters"},
    {"zero_allow_untested_optimizer", "*",
     "true: an optimizer that is not torch's treats elements one by one, and runs under every ZeRO "
     "stage"},
    {"zero_force_ds_cpu_optimizer", "*", "torch's optimizers run on the CPU"},
    {"dump_state", "*", "engine.config has all values"},
    {"wall_clock_breakdown memory_breakdown", "*", kNoTimes, kUseProfiler},
    {"disable_python_gc", "false", "Python collects as it is told to", "call gc.disable()"},
    {"log_level", "*", "the log is logging.getLogger(\"penstock\")"},

    {"optimizer.legacy_fusion", "*", kClass},
    {"optimizer.params.bias_correction", "true", "Adam corrects its means for their start"},

    {"fp16.auto_cast", "false", "inputs keep their types", "cast them yourself"},
    {"bf16.check_grad_overflow", "*", "a step whose gradients are not finite is always skipped"},

    {"pipeline.stages", "*", "must be num_stages of the PipelineModule, or \"auto\""},
    {"pipeline.seed_layers", "*", "must be seed_layers of the PipelineModule"},
    {"pipeline.partition", "\"best\"", kOfModule, "use its argument partition_method"},
    {"pipeline.layer_costs pipeline.bounds", "", kOfModule, "use its argument partition_method"},
    {"pipeline.checkpointable_layers", "", kOfModule, "use its argument checkpointable_layers"},
    {"activation_checkpointing.number_checkpoints", "null",
     "layers are computed again in groups of a given length",
     "use pipeline.activation_checkpoint_interval"},
    {"activation_checkpointing.profile", "false", kNoTimes, kUseProfiler},

    {"checkpoint.tag_validation", "\"Fail\" \"FAIL\" \"Warn\" \"WARN\" \"Ignore\" \"IGNORE\"",
     "tags that differ between ranks are always an error"},
    {"checkpoint.load_universal", "false", kAnyLayout},
    {"checkpoint.use_node_local_storage", "false", "all ranks write to one folder"},
    {"checkpoint.parallel_write.pipeline_stage checkpoint.checkpoint_serialization "
     "checkpoint.writer.type checkpoint.writer.decoupled checkpoint.writer.io_buffer_size "
     "checkpoint.writer.io_buffer_double checkpoint.writer.data_parallel "
     "checkpoint.writer.io_multiplier",
     "*", "checkpoints are written in one way: each file whole, by one rank"},

    {"zero_optimization.load_from_fp32_weights zero_optimization.elastic_checkpoint "
     "zero_optimization.pipeline_loading_checkpoint",
     "*", kAnyLayout},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save "
     "zero_optimization.stage3_gather_fp16_weights_on_model_save",
     "*", "module_state_dict() and a pipeline's checkpoints have whole parameters"},
    {"zero_optimization.cpu_offload zero_optimization.cpu_offload_param "
     "zero_optimization.cpu_offload_params zero_optimization.cpu_offload_use_pin_memory",
     "*", kInHostMemory},

    {"comms_logger.enabled flops_profiler.enabled", "false", kNoTimes, kUseProfiler},
    {"comet.enabled", "false", "an engine does not write to Comet",
     "use tensorboard, wandb or csv_monitor"},
    {"tensor_parallel.autotp_size", "0 1", "a module is computed whole on each rank",
     "train a Hugging Face folder with penstock.Trainer and mesh.tensor, or divide modules by "
     "torch's DTensor in penstock.pipelining"},
    {"tensor_parallel.*", "*", "means nothing without tensor_parallel.autotp_size"},
    {"mesh.*", "", "it is a key of penstock train, whose models penstock.Trainer trains",
     "take that, or leave it out"},
    {"model.* data.* numerics.* launch.* run.*", "", kOfTrain},
    {"schedule.window_steps schedule.cost_change schedule.adapt schedule.adapt_gain", "", kOfTrain},
    {"checkpoint.directory checkpoint.save_interval checkpoint.save_minutes checkpoint.keep_last "
     "checkpoint.keep_every "
     "checkpoint.asynchronous checkpoint.on_failure checkpoint.resume checkpoint.schedule",
     "", kOfTrain, "call save_checkpoint() and load_checkpoint()"},
    {"scheduler.params.warmup scheduler.params.decay scheduler.params.decay_type "
     "scheduler.params.min_ratio",
     "", kOfTrain, "use a scheduler of torch.optim"},
    {"seed", "", kOfTrain, "call torch.manual_seed()"},
    {"optimizer.groups", "", kOfTrain, "give initialize() an optimizer with these groups"},
});

constexpr auto kDifferences = std::to_array<Difference>({
    {"gradient_clipping",
     "the norm is that of all stages; DeepSpeed's, in a pipeline without ZeRO, that of stage 0"},
});

constexpr auto kDifferencesOfTrain = std::to_array<Difference>({
    {"pipeline.partition", "cuts the layers; DeepSpeed passes it over"},
    {"scheduler.type", "step i has the rate of i; DeepSpeed's that of i - 1", "\"WarmupCosineLR\""},
    {"zero_optimization.offload_optimizer.device", kInHostMemory, "\"cpu\""},
    {"zero_optimization.offload_param.device", kInHostMemory, "\"cpu\""},
});

constexpr auto kDifferencesOfInitialize = std::to_array<Difference>({
    {"zero_optimization.offload_optimizer.device", kInHostMemory, "\"cpu\""},
    {"zero_optimization.offload_param.device", kInHostMemory, "\"cpu\""},
    {"optimizer.params.torch_adam", kClass},
});

constexpr auto kAbsent = std::to_array<AbsentKey>({
    {"gradient_clipping", "", "absent: nothing is clipped; DeepSpeed 0.19 then clips at 1.0"},
});

constexpr auto kAbsentFromTrain = std::to_array<AbsentKey>({
    {"zero_optimization.stage3_param_persistence_threshold", "zero_optimization.stage",
     "absent: in stage 3 all parameters come and go; DeepSpeed's of up to 100000 elements stay"},
});

constexpr auto kAbsentFromInitialize = std::to_array<AbsentKey>({
    {"optimizer.params.weight_decay", "optimizer.type",
     "absent: AdamW has torch's 0.01; DeepSpeed's has none"},
});

}  // namespace

DeepSpeedRows shared_rows() { return {kForeign, kDifferences, kAbsent}; }

DeepSpeedRows rows_of(Dialect dialect) {
  switch (dialect) {
    case Dialect::Train:
      return {kForeignToTrain, kDifferencesOfTrain, kAbsentFromTrain};
    case Dialect::Initialize:
      return {kForeignToInitialize, kDifferencesOfInitialize, kAbsentFromInitialize};
  }
  return {};
}

}  // namespace penstock::config
