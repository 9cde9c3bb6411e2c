// The configuration of a run, as plain values.
//
// read_config() makes one from a JSON file and `--set` overrides, resolve_mesh() and
// resolve_batch() derive what follows from the number of processes; everything below reads it and
// nothing below sees a string where an enum is meant.  Knows no tensors and no processes. Keys and
// ranges are in fields.h; names are DeepSpeed's where DeepSpeed has one.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/core/mesh/axes.h"
#include "penstock/plan/config/zero_stage.h"

namespace penstock::config {

enum class ModelType : std::uint8_t { Gpt, Mlp, HuggingFace };

// A number for the linears whose names end with the name, a regular expression.
struct NamedNumber {
  std::string name;
  double number = 0.0;

  friend bool operator==(const NamedNumber&, const NamedNumber&) = default;
};

// First values of adapters; as nn::FirstAdapters.
enum class FirstAdapters : std::uint8_t { Uniform, Gaussian };

// Low-rank adapters of a folder's model, as nn::AdapterOptions.
struct AdapterConfig {
  std::int64_t rank = 0;  // 0: none, all weights are trained.
  double alpha = 16.0;
  std::string targets = "q_proj|v_proj|c_attn";
  std::vector<NamedNumber> rank_pattern = {};   // Linears with a rank of their own.
  std::vector<NamedNumber> alpha_pattern = {};  // Linears with an alpha of their own.
  bool use_rslora = false;                      // Scaled by alpha / sqrt(rank).
  bool use_dora = false;                        // Lengths of the weights' rows are trained, too.
  FirstAdapters init_lora_weights = FirstAdapters::Uniform;
  std::string modules_to_save = {};  // Other modules that are trained whole, a regular expression.
  double dropout = 0.0;              // Probability that an element of an adapter's input is 0.
  std::string path = {};             // A folder of adapters to begin with; empty: new ones.
  bool merge = false;                // Save the model with the adapters added, not these alone.

  friend bool operator==(const AdapterConfig&, const AdapterConfig&) = default;
};

// The source of a folder's first weights; as hugging_face::FirstWeights.
enum class FirstWeights : std::uint8_t { Folder, Random };

// Activations of blocks that are computed again in the backward.
enum class ActivationCheckpoint : std::uint8_t {
  Off,
  Selective,  // Outputs of RMS norms and of SwiGLU; products and attention are kept.
};

struct ModelConfig {
  ModelType type = ModelType::Gpt;
  std::int64_t layers = 4;    // Transformer blocks (gpt) or Linear-ReLU-Linear blocks (mlp).
  std::int64_t hidden = 128;  // Width of the residual stream.
  std::int64_t heads = 4;     // Attention heads; must divide hidden.
  std::int64_t sequence_length = 128;           // Tokens (bytes) per sample.
  std::int64_t vocabulary = 256;                // Token ids are below it; 256: bytes.
  bool tie_embeddings = false;                  // The head's weight is the embedding's.
  double dropout = 0.0;                         // Probability of a zero.
  std::string path = {};                        // HuggingFace: the folder.
  FirstWeights weights = FirstWeights::Folder;  // HuggingFace only.
  ActivationCheckpoint activation_checkpoint = ActivationCheckpoint::Off;  // HuggingFace only.
  AdapterConfig adapter = {};                                              // HuggingFace only.

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// How tokens lie in files; as data::TokenFormat, which knows no config.
enum class DataFormat : std::uint8_t { Auto, Text, Uint16, Uint32, LlmC, Megatron };

// One of several corpora that training draws from.
struct DataSource {
  std::string path = {};
  double weight = 1.0;  // Its share of the samples, relative to the other sources'.
  DataFormat format = DataFormat::Auto;

  friend bool operator==(const DataSource&, const DataSource&) = default;
};

// The name of the one validation set that has none of its own.
inline constexpr const char* kOnlyValidationSet = "validation";

// Tokens to validate with, by a name; data.validation as one path has none.
struct ValidationSet {
  std::string name = {};
  std::string path = {};

  friend bool operator==(const ValidationSet&, const ValidationSet&) = default;
};

struct DataConfig {
  // A file or a folder, of text or of tokens; empty: `sources`, or the Python standard library's.
  std::string path = {};
  DataFormat format = DataFormat::Auto;
  std::vector<DataSource> sources = {};  // Corpora of tokens, instead of a path.
  bool shuffle = true;                   // Tokens only: another order in each epoch.
  // Tokens; empty: the last 5 % of each source.
  std::vector<ValidationSet> validation = {};
  bool attend_across_documents = true;  // Tokens only: a sample's documents see each other.
  // Otherwise: the token that ends a document; absent: what the notes of the files say.
  std::optional<std::int64_t> document_end = {};

  friend bool operator==(const DataConfig&, const DataConfig&) = default;
};

struct MeshConfig {
  std::int64_t pipe = 1;                  // Pipeline ranks.
  std::optional<std::int64_t> data = {};  // Data-parallel ranks; absent: what is left of the world.
  // Ranks along the further axes of the table: context, tensor.
  mesh::OtherAxes<std::int64_t> others = mesh::each<std::int64_t>(1);

  friend bool operator==(const MeshConfig&, const MeshConfig&) = default;
};

struct ScheduleConfig {
  std::string name = "1f1b";  // A registered schedule; empty when `file` is given.
  std::string file = {};      // A file with a program, instead of a name.
  std::optional<std::int64_t> stages_per_rank = {};  // Absent: as many as the schedule has.
  std::int64_t window_steps = 20;  // Steps in which costs are measured together; 0: none are.
  double cost_change = 0.25;       // The share by which a stage's time has to change to be told.
  bool adapt = false;              // Whether the ranks change to a faster order of actions.
  double adapt_gain = 0.03;        // The share of a step that it has to save, by simulation.

  friend bool operator==(const ScheduleConfig&, const ScheduleConfig&) = default;
};

enum class PartitionMethod : std::uint8_t { Uniform, Parameters, LayerCost, Bounds, TypeRegex };

struct PipelineConfig {
  PartitionMethod partition = PartitionMethod::Parameters;
  std::string type_regex = {};           // TypeRegex: matched against layer type names.
  std::vector<double> layer_costs = {};  // LayerCost: one a layer, any unit.
  std::vector<std::int64_t> bounds =
      {};  // Bounds: first layer of each stage, then the layer count.
  std::int64_t activation_checkpoint_interval = 0;  // Layers recomputed together; 0: none are.
  std::string checkpointable_layers = {};           // Only layers whose type matches; empty: all.

  friend bool operator==(const PipelineConfig&, const PipelineConfig&) = default;
};

// The place of something while it is not used, in DeepSpeed's words.
enum class OffloadDevice : std::uint8_t {
  Off,   // Stays on the rank's device.
  Cpu,   // Host memory.
  Nvme,  // A file.
};

struct OffloadConfig {
  OffloadDevice device = OffloadDevice::Off;
  std::string nvme_path = {};  // Nvme: the folder of the file.

  friend bool operator==(const OffloadConfig&, const OffloadConfig&) = default;
};

// Sizes are in elements, as in DeepSpeed.
struct ZeroConfig {
  ZeroStage stage = ZeroStage::Off;
  std::int64_t reduce_bucket_size = 1 << 20;                // Reduced, or gathered, at one time.
  std::int64_t stage3_max_live_parameters = 1'000'000'000;  // Whole on a rank at one time.
  std::int64_t stage3_prefetch_bucket_size = 50'000'000;    // Looked ahead of what is used.
  std::int64_t stage3_param_persistence_threshold = 0;      // Stay whole, with stage 3: ...
  std::optional<std::int64_t> stage3_model_persistence_threshold =
      {};                                // ... all together; absent: any.
  OffloadConfig offload_param = {};      // Place of a rank's parameters under stage 3.
  OffloadConfig offload_optimizer = {};  // Optimizer states, and masters of short types.

  friend bool operator==(const ZeroConfig&, const ZeroConfig&) = default;
};

// Parameters and activations in bfloat16, masters in float.
struct Bf16Config {
  bool enabled = false;

  friend bool operator==(const Bf16Config&, const Bf16Config&) = default;
};

// IEEE half precision, with a gradient scale (update/gradient_scale.h), in DeepSpeed's words.
struct Fp16Config {
  bool enabled = false;
  double loss_scale = 0;  // 0: it follows overflows, by what is below.
  std::int64_t initial_scale_power = 16;
  std::int64_t loss_scale_window = 1000;  // Steps without an overflow before one that doubles it.
  std::int64_t hysteresis = 2;            // Overflows of which the last one halves it.
  bool consecutive_hysteresis = false;    // Counts only overflows since the last step without one.
  double min_loss_scale = 1;

  friend bool operator==(const Fp16Config&, const Fp16Config&) = default;
};

enum class DataType : std::uint8_t { Fp32, Bf16, Fp16 };

struct DataTypesConfig {
  std::optional<DataType> grad_accum_dtype = {};  // Absent: as the parameters.

  friend bool operator==(const DataTypesConfig&, const DataTypesConfig&) = default;
};

struct NumericsConfig {
  bool invariant = false;  // The same bits for every number of data-parallel ranks.

  friend bool operator==(const NumericsConfig&, const NumericsConfig&) = default;
};

enum class OptimizerType : std::uint8_t { AdamW, Adam, Sgd };

// Parameters with values of their own; what is absent is the optimizer's.
struct ParameterGroup {
  std::string parameters;  // A regular expression, which is found in their names.
  std::optional<double> lr = {};
  std::optional<double> weight_decay = {};
  std::optional<std::array<double, 2>> betas = {};  // AdamW, Adam.
  std::optional<double> eps = {};                   // AdamW, Adam.

  friend bool operator==(const ParameterGroup&, const ParameterGroup&) = default;
};

struct OptimizerConfig {
  OptimizerType type = OptimizerType::AdamW;
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};  // AdamW, Adam.
  double eps = 1e-8;                           // AdamW, Adam.
  double weight_decay = 0.0;
  double momentum = 0.0;    // SGD.
  double dampening = 0.0;   // SGD: share of the gradient that momentum does not get.
  bool nesterov = false;    // SGD: momentum looks a step ahead; needs one, and no dampening.
  bool amsgrad = false;     // AdamW, Adam: by the largest second moment so far.
  bool adam_w_mode = true;  // Adam: whether it is AdamW, as in DeepSpeed.
  // A parameter is in the first that is found in its name.
  std::vector<ParameterGroup> groups = {};

  // Whether weight decay is no part of the gradient.
  bool is_decoupled() const {
    return type == OptimizerType::AdamW || (type == OptimizerType::Adam && adam_w_mode);
  }

  friend bool operator==(const OptimizerConfig&, const OptimizerConfig&) = default;
};

// WarmupCosine is DeepSpeed's, the others are those of transformers.
enum class SchedulerType : std::uint8_t {
  Constant,
  WarmupCosine,
  Cosine,
  Linear,
  Wsd,
  InverseSqrt
};
enum class WarmupType : std::uint8_t { Log, Linear };
// The shape of WSD's fall.
enum class DecayType : std::uint8_t { Cosine, Linear, OneMinusSqrt };

// The learning rate's course; learning_rate.h has the curves.
struct SchedulerConfig {
  SchedulerType type = SchedulerType::Constant;
  // All types but WarmupCosine have these.  Below 1: a share of the steps until the end; else
  // steps.
  double warmup = 0.0;                       // Rise from 0.
  double decay = 0.1;                        // WSD: fall at the end.
  DecayType decay_type = DecayType::Linear;  // WSD.
  double min_ratio = 0.0;                    // Last lr, as a share of lr.
  // WarmupCosine, but for the total.
  std::int64_t warmup_num_steps = 1000;
  std::optional<std::int64_t> total_num_steps = {};  // Absent: run.steps.
  double warmup_min_ratio = 0.0;                     // lr of the first step, as a share of lr.
  double cos_min_ratio = 1e-4;                       // lr at the end, as a share of lr.
  WarmupType warmup_type = WarmupType::Log;

  friend bool operator==(const SchedulerConfig&, const SchedulerConfig&) = default;
};

// What carries messages between two ranks; as comm::Transport, which knows no config.
enum class Transport : std::uint8_t { Auto, Gloo, Tcp, Shm };

// What a rank computes on.
enum class Device : std::uint8_t { Auto, Cpu, Cuda };

struct LaunchConfig {
  // A run without progress for so long is ended:
  double heartbeat_seconds = 30;  // While in a step; also silence of a rank.
  double startup_seconds = 300;   // While it starts and while it ends.
  double disk_seconds = 1800;     // While a rank reads or writes files.
  // Restarts of a run of penstock's launcher, with checkpoints, after a rank was lost or hung.
  // Counted in a row without a new checkpoint.
  std::int64_t restarts = 3;
  // Fewest ranks with which it may go on then; 0: as many as it began with.
  std::int64_t ranks_min = 0;
  Transport transport = Transport::Auto;
  Device device = Device::Auto;

  friend bool operator==(const LaunchConfig&, const LaunchConfig&) = default;
};

// A schedule that ends with the run, where the run goes on to another last step.
enum class ResumedSchedule : std::uint8_t {
  Rescale,  // Ends with the new last step: the rate jumps.
  Keep,     // Ends where it did.
};

// What becomes of a checkpoint that cannot be written.
enum class OnFailure : std::uint8_t { Warn, Stop };

// Checkpoints of training, which a run goes on from; docs/checkpoints.md.
struct CheckpointConfig {
  std::string directory = {};      // Empty: RUN/checkpoints.
  std::int64_t save_interval = 0;  // Optimizer steps; 0: none are saved for their number.
  double save_minutes = 0.0;       // Minutes between two; 0: none are saved for their age.
  std::int64_t keep_last = 2;      // Newest ones that stay; 0: all.
  std::int64_t keep_every = 0;     // Steps that it divides stay, too; 0: none.
  bool asynchronous = true;        // Files are written beside the steps that follow.
  OnFailure on_failure = OnFailure::Warn;
  std::string resume = {};  // "auto", a checkpoint's folder, or empty: a run begins anew.
  ResumedSchedule schedule = ResumedSchedule::Rescale;

  bool saves() const { return save_interval > 0 || save_minutes > 0; }
  friend bool operator==(const CheckpointConfig&, const CheckpointConfig&) = default;
};

struct RunConfig {
  std::string directory = {};        // Empty: runs/<config name>-<time or job id>.
  std::int64_t steps = 100;          // Optimizer steps.
  double epochs = 0.0;               // Passes over the samples, instead of steps; 0: none.
  double minutes = 0.0;              // Limit after which it stops as if asked to; 0: none.
  std::int64_t eval_interval = 0;    // Steps between validations; 0: only at the end.
  std::int64_t eval_batches = 8;     // Global batches averaged by one validation; 0: none is made.
  std::string best = {};             // The set whose lowest loss says which model is saved.
  std::int64_t patience = 0;         // Validations in a row without a lower one; 0: any number.
  std::int64_t sample_bytes = 200;   // Bytes of a text that the model writes; 0: none.
  std::int64_t sample_tokens = 0;    // Tokens of such a text, of a folder's model; 0: none.
  std::string sample_prompt = {};    // It goes on from this; empty: from a sample of the data.
  std::int64_t sample_interval = 0;  // Steps between such texts; 0: one, at the end.
  std::int64_t timeline_steps = 0;   // The first steps, recorded in timeline.csv; 0: none.
  std::string save = {};             // Directory for the weights; empty: not saved.
  std::int64_t save_interval = 0;    // Steps between such saves; 0: only at the end.

  friend bool operator==(const RunConfig&, const RunConfig&) = default;
};

// The batch-size triangle: train_batch_size = train_micro_batch_size_per_gpu x
// gradient_accumulation_steps x data-parallel ranks.  In a pipeline, gradient_accumulation_steps is
// the number of microbatches per step of one replica.
struct BatchConfig {
  std::optional<std::int64_t> train_batch_size = {};                // Samples per optimizer step.
  std::optional<std::int64_t> train_micro_batch_size_per_gpu = {};  // Samples per microbatch.
  std::optional<std::int64_t> gradient_accumulation_steps = {};     // Microbatches per replica.

  friend bool operator==(const BatchConfig&, const BatchConfig&) = default;
};

struct Config {
  BatchConfig batch = {};
  OptimizerConfig optimizer = {};
  SchedulerConfig scheduler = {};
  double gradient_clipping = 0.0;  // Largest global 2-norm of the gradient; 0: no clipping.
  std::int64_t steps_per_print = 10;
  std::int64_t seed = 1234;
  ModelConfig model = {};
  DataConfig data = {};
  MeshConfig mesh = {};
  PipelineConfig pipeline = {};
  ScheduleConfig schedule = {};
  ZeroConfig zero_optimization = {};
  Bf16Config bf16 = {};
  Fp16Config fp16 = {};
  DataTypesConfig data_types = {};
  NumericsConfig numerics = {};
  LaunchConfig launch = {};
  CheckpointConfig checkpoint = {};
  RunConfig run = {};

  friend bool operator==(const Config&, const Config&) = default;
};

}  // namespace penstock::config
