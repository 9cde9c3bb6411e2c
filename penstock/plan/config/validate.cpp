#include "penstock/config/validate.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <string>

#include "penstock/core/text.h"
#include "penstock/plan/config/fields.h"
#include "penstock/plan/config/path_visitor.h"
#include "penstock/plan/config/resolve.h"
#include "penstock/plan/config/wording.h"

namespace penstock::config {
namespace {

// Visitor: each value against its own kind.
class RangeCheck : public PathVisitor {
 public:
  explicit RangeCheck(Problems& problems) : problems_(problems) {}

  template <class T, class Kind>
  void field(std::string_view key, const T& value, const Kind& kind, std::string_view /*meaning*/) {
    if (const auto wrong = kind.check(value)) {
      problems_.add({}, path_of(key) + *wrong);
    }
  }

 private:
  Problems& problems_;
};

// The origin of the first of those keys that was given.
Origin first_given(const Origins& origins, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    const auto found = origins.find(key);
    if (found != origins.end()) return found->second;
  }
  return {};
}

// The divisors of `n` next to `wanted` on either side.
std::vector<std::int64_t> divisors_near(std::int64_t n, std::int64_t wanted) {
  std::vector<std::int64_t> near;
  for (std::int64_t d = std::min(wanted, n); d >= 1 && near.empty(); --d) {
    if (n % d == 0) near.push_back(d);
  }
  for (std::int64_t d = wanted + 1; d <= n; ++d) {
    if (n % d != 0) continue;
    near.push_back(d);
    break;
  }
  return near;
}

void check_heads(const ModelConfig& model, const Origins& origins, Problems& problems) {
  if (model.type != ModelType::Gpt || model.hidden % model.heads == 0) return;
  problems.add(first_given(origins, {"model.heads", "model.hidden"}),
               str("model.heads = ", model.heads, ": must divide model.hidden = ", model.hidden,
                   "; use ", either(divisors_near(model.hidden, model.heads))));
}

void check_folder_of_model(const ModelConfig& model, const Origins& origins, Problems& problems) {
  if (model.type != ModelType::HuggingFace || !model.path.empty()) return;
  problems.add(first_given(origins, {"model.type"}),
               "model.path is missing: type \"hugging_face\" needs the folder of a model");
}

void check_partition(const PipelineConfig& pipeline, const Origins& origins, Problems& problems) {
  const Origin origin =
      first_given(origins, {"pipeline.bounds", "pipeline.layer_costs", "pipeline.partition"});
  if (pipeline.partition == PartitionMethod::LayerCost && pipeline.layer_costs.empty()) {
    problems.add(origin,
                 "pipeline.layer_costs is missing: partition \"layer_cost\" needs one "
                 "cost a layer");
  }
  if (pipeline.partition != PartitionMethod::Bounds) return;
  const std::vector<std::int64_t>& bounds = pipeline.bounds;
  if (bounds.empty()) {
    problems.add(origin,
                 "pipeline.bounds is missing: partition \"bounds\" needs the first layer "
                 "of each stage, then the number of layers");
    return;
  }
  const bool rises =
      std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal<>()) == bounds.end();
  if (bounds.size() >= 2 && bounds.front() == 0 && rises) return;
  problems.add(origin, str("pipeline.bounds = [", join(bounds, ", "),
                           "]: must start with 0, rise, and end with the number of layers"));
}

// What no number of ranks can make fit.
void check_sizes(const BatchConfig& batch, const Origins& origins, Problems& problems) {
  const auto& [train, micro, accumulation] = batch;
  const std::int64_t divisor = micro.value_or(1) * accumulation.value_or(1);
  if (!train || *train % divisor == 0) return;
  const std::int64_t below = *train / divisor * divisor;
  std::string factors;
  if (micro) factors += str("train_micro_batch_size_per_gpu ", *micro);
  if (micro && accumulation) factors += " x ";
  if (accumulation) factors += str("gradient_accumulation_steps ", *accumulation);
  problems.add(first_given(origins, {"train_batch_size"}),
               str("train_batch_size = ", *train, ": must be a multiple of ", factors, "; use ",
                   below == 0 ? "" : str(below, " or "), below + divisor));
}

// Checks the warm-up against the total alone.  A run cut short with --steps may end inside its
// warm-up.
void check_warmup(const Config& config, const Origins& origins, Problems& problems) {
  const SchedulerConfig& scheduler = config.scheduler;
  if (scheduler.type != SchedulerType::WarmupCosine || !scheduler.total_num_steps ||
      scheduler.warmup_num_steps <= *scheduler.total_num_steps) {
    return;
  }
  constexpr std::string_view kKey = "scheduler.params.warmup_num_steps";
  problems.add(first_given(origins, {kKey, "scheduler.params.total_num_steps"}),
               str(kKey, " = ", scheduler.warmup_num_steps,
                   origins.contains(kKey) ? "" : ", as it is not given",
                   ": must be at most total_num_steps = ", *scheduler.total_num_steps));
}

// A rise and a fall of WSD that do not fit into its steps.
void check_shares(const Config& config, const Origins& origins, Problems& problems) {
  const SchedulerConfig& scheduler = config.scheduler;
  if (scheduler.type != SchedulerType::Wsd) return;
  const bool are_shares = scheduler.warmup < 1 && scheduler.decay < 1;
  if (!are_shares || scheduler.warmup + scheduler.decay <= 1) return;
  problems.add(first_given(origins, {"scheduler.params.decay", "scheduler.params.warmup"}),
               str("scheduler.params.decay = ", shortest(scheduler.decay), ", with warmup = ",
                   shortest(scheduler.warmup), ": must be at most all of the steps together"));
}

// The set that says which model is the best.
void check_best(const Config& config, const Origins& origins, Problems& problems) {
  if (config.run.best.empty()) return;
  if (config.run.eval_batches == 0) {
    problems.add(first_given(origins, {"run.best"}),
                 str("run.best = ", in_quotes(config.run.best),
                     ": needs validations, and run.eval_batches is 0"));
  }
  if (config.run.save_interval > 0) {
    problems.add(first_given(origins, {"run.save_interval"}),
                 str("run.save_interval = ", config.run.save_interval,
                     ": run.best says when run.save gets a model"));
  }
  std::vector<std::string> names;
  for (const ValidationSet& each : config.data.validation) names.push_back(each.name);
  if (names.empty()) names.emplace_back();
  for (std::string& name : names) {
    if (name.empty()) name = kOnlyValidationSet;
  }
  if (std::ranges::find(names, config.run.best) != names.end()) return;
  problems.add(
      first_given(origins, {"run.best"}),
      str("run.best = ", in_quotes(config.run.best), ": needs a validation set of that name",
          suggest(config.run.best, names), "; there is ", join(names, ", ")));
}

void check_optimizer_values(const OptimizerConfig& optimizer, const Origins& origins,
                            Problems& problems) {
  const bool fits = optimizer.momentum > 0 && optimizer.dampening == 0;
  if (optimizer.type != OptimizerType::Sgd || !optimizer.nesterov || fits) return;
  problems.add(first_given(origins, {"optimizer.params.nesterov"}),
               str("optimizer.params.nesterov", kNesterovNeeds));
}

void check_data(const DataConfig& data, const Origins& origins, Problems& problems) {
  if (data.sources.empty()) return;
  const Origin origin = first_given(origins, {"data.sources"});
  if (!data.path.empty()) {
    problems.add(origin, str("data.sources: data.path = ", quoted_path(data.path),
                             " is given too; keep one of them"));
  }
  const auto is_text = [&](const DataSource& source) {
    return source.format == DataFormat::Text ||
           (source.format == DataFormat::Auto && data.format == DataFormat::Text);
  };
  if (!std::ranges::any_of(data.sources, is_text)) return;
  problems.add(origin,
               "data.sources: their format is \"text\"; sources are token files: make them with "
               "python -m penstock.tokenize, or name a text by data.path");
}

void check_schedule(const ScheduleConfig& schedule, const Origins& origins, Problems& problems) {
  if (schedule.name.empty() != schedule.file.empty()) return;
  const Origin origin = first_given(origins, {"schedule.file", "schedule.name"});
  if (schedule.name.empty()) {
    problems.add(origin, "schedule: needs a name or a file");
  } else {
    problems.add(origin, str("schedule.file = ", quoted_path(schedule.file), ": schedule.name = ",
                             in_quotes(schedule.name), " is given too; keep one of them"));
  }
}

void check_adapt(const ScheduleConfig& schedule, const Origins& origins, Problems& problems) {
  if (!schedule.adapt || schedule.window_steps > 0) return;
  problems.add(first_given(origins, {"schedule.window_steps", "schedule.adapt"}),
               "schedule.window_steps = 0: schedule.adapt is true, and needs costs that are "
               "measured; take 1 or more, or leave it out");
}

void check_context(const MeshConfig& mesh, const Origins& origins, Problems& problems) {
  const std::int32_t ranks = asked_shape(mesh)[mesh::Axis::Context];
  if (ranks == 1) return;
  problems.add(first_given(origins, {"mesh.context"}),
               str("mesh.context = ", ranks,
                   ": context parallelism is not there yet; take 1, or mesh.tensor, whose ranks "
                   "share the tokens of a sample between layers as well"));
}

// What is there only for ranks with whole layers.
void check_shared_layers(const Config& config, const Origins& origins, Problems& problems) {
  const std::int32_t ranks = asked_shape(config.mesh)[mesh::Axis::Tensor];
  if (ranks == 1) return;
  const Origin origin = first_given(origins, {"mesh.tensor"});
  const std::string what = str("mesh.tensor = ", ranks, ": ");
  if (config.numerics.invariant && (config.bf16.enabled || config.fp16.enabled)) {
    problems.add(origin, str(what,
                             "numerics.invariant is true, and ranks would add summands that are "
                             "rounded to ",
                             config.bf16.enabled ? "bf16" : "fp16",
                             ": with it, ranks share layers of float"));
  }
  if (config.numerics.invariant && (ranks > 8 || 8 % ranks != 0)) {
    problems.add(origin, str(what,
                             "numerics.invariant is true, and sums within a layer have 8 blocks, "
                             "which ranks share: take 1, 2, 4 or 8"));
  }
  const std::int64_t tokens = config.model.sequence_length;
  if (config.numerics.invariant && 8 % ranks == 0 && tokens % ranks != 0) {
    problems.add(origin, str(what, "numerics.invariant is true, and samples of ", tokens,
                             " tokens have no ", ranks, " equal parts; take a multiple of ", ranks,
                             " for model.sequence_length"));
  }
}

void check_folder(const OffloadConfig& offload, const std::string& section, const Origins& origins,
                  Problems& problems) {
  if (offload.device != OffloadDevice::Nvme || !offload.nvme_path.empty()) return;
  problems.add(first_given(origins, {section + ".device"}),
               section + ".nvme_path is missing: device \"nvme\" needs the folder of a file");
}

void check_offload(const Config& config, const Origins& origins, Problems& problems) {
  const ZeroConfig& zero = config.zero_optimization;
  check_folder(zero.offload_optimizer, "zero_optimization.offload_optimizer", origins, problems);
  check_folder(zero.offload_param, "zero_optimization.offload_param", origins, problems);
  // In host memory they are in every stage.
  if (zero.offload_param.device != OffloadDevice::Nvme || zero.stage == ZeroStage::Parameters)
    return;
  problems.add(first_given(origins, {"zero_optimization.offload_param.device"}),
               str("zero_optimization.offload_param.device = ",
                   Choice<OffloadDevice>{kOffloadDevices}.write(zero.offload_param.device),
                   ": needs zero_optimization.stage 3, and not ", number_of(zero.stage),
                   ", with which parameters are whole all the time"));
}

void add_wrong(const std::string& section, const std::vector<WrongArgument>& wrong,
               const Origins& origins, Problems& problems) {
  for (const WrongArgument& each : wrong) {
    const std::string path = str(section, ".params.", each.name);
    problems.add(first_given(origins, {path, section + ".type"}), path + each.why);
  }
}

void check_classes(const InitializeConfig& config, const Origins& origins, Problems& problems) {
  const NamedClass* optimizer = nullptr;
  if (!config.optimizer_type.empty()) {
    optimizer = find_class(ClassFamily::Optimizers, config.optimizer_type);
    add_wrong("optimizer", check_optimizer(*optimizer, config.optimizer_arguments), origins,
              problems);
  }
  if (config.scheduler_type.empty()) return;
  const NamedClass& scheduler = *find_class(ClassFamily::Schedulers, config.scheduler_type);
  add_wrong("scheduler", check_scheduler(scheduler, config.scheduler_arguments, optimizer), origins,
            problems);
}

std::string written(DataType type) { return Choice<DataType>{kDataTypes}.write(type); }

void check_types(const Config& config, const Origins& origins, Problems& problems) {
  if (config.bf16.enabled && config.fp16.enabled) {
    problems.add(first_given(origins, {"fp16.enabled", "bf16.enabled"}),
                 "fp16.enabled = true: bf16.enabled is true, too; take one of them");
  }
  const auto& sums = config.data_types.grad_accum_dtype;
  if (!sums) return;
  const Origin origin = first_given(origins, {"data_types.grad_accum_dtype"});
  const DataType parameters = config.bf16.enabled   ? DataType::Bf16
                              : config.fp16.enabled ? DataType::Fp16
                                                    : DataType::Fp32;
  if (*sums != DataType::Fp32 && *sums != parameters) {
    problems.add(origin,
                 str("data_types.grad_accum_dtype = ", written(*sums), ": the parameters are ",
                     written(parameters), "; take null or \"fp32\""));
  }
  if (config.numerics.invariant && *sums != parameters) {
    problems.add(origin, str("data_types.grad_accum_dtype = ", written(*sums),
                             ": numerics.invariant adds gradients in the type of the parameters"));
  }
}

}  // namespace

void validate(const Config& config, const Origins& origins) {
  Problems problems;
  RangeCheck ranges(problems);
  visit_config(ranges, config);
  problems.raise();  // The checks below divide by these values.
  check_heads(config.model, origins, problems);
  check_folder_of_model(config.model, origins, problems);
  check_partition(config.pipeline, origins, problems);
  check_optimizer_values(config.optimizer, origins, problems);
  check_warmup(config, origins, problems);
  check_shares(config, origins, problems);
  check_best(config, origins, problems);
  check_data(config.data, origins, problems);
  check_schedule(config.schedule, origins, problems);
  check_adapt(config.schedule, origins, problems);
  check_context(config.mesh, origins, problems);
  check_shared_layers(config, origins, problems);
  check_offload(config, origins, problems);
  check_types(config, origins, problems);
  problems.raise();
}

void validate(const InitializeConfig& config, const Origins& origins) {
  Problems problems;
  check_sizes(config.config.batch, origins, problems);
  check_classes(config, origins, problems);
  check_offload(config.config, origins, problems);
  check_types(config.config, origins, problems);
  if (origins.contains("schedule.name") && origins.contains("schedule.file")) {
    check_schedule(config.config.schedule, origins, problems);
  }
  problems.raise();
}

}  // namespace penstock::config
