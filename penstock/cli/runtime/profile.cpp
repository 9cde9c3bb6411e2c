#include "penstock/cli/runtime/profile.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>

#include <chrono>
#include <cstdlib>

#include "penstock/cli/formatted.h"
#include "penstock/cli/runtime/ledger.h"
#include "penstock/cli/text_table.h"
#include "penstock/config/read.h"
#include "penstock/core/atomic_file.h"
#include "penstock/core/error.h"
#include "penstock/core/program_output.h"
#include "penstock/core/progress_lines.h"
#include "penstock/core/text.h"
#include "penstock/launch/rank_environment.h"
#include "penstock/partition/partition.h"
#include "penstock/plan/config/resolve.h"
#include "penstock/plan/config/whole_layers.h"
#include "penstock/plan/lower/programs.h"
#include "penstock/plan/partition/segment_ranges.h"
#include "penstock/plan/render/number.h"
#include "penstock/plan/simulate/costs_json.h"
#include "penstock/runtime/probe/device_probe.h"
#include "penstock/runtime/run/from_config.h"
#include "penstock/runtime/run/run_memory.h"

namespace penstock::cli {
namespace {

using probe::ModelTimes;
using probe::PassTimes;
using probe::Spread;

constexpr double kMilliseconds = 1e3;
// Share of a kind of layer's time that each measurement of a device has: there are about forty.
constexpr double kOfDevice = 0.3;

// Milliseconds of a microbatch.
struct Cost {
  double forward = 0.0;
  double backward = 0.0;
  double input = 0.0;
  double weight = 0.0;

  Cost& operator+=(const PassTimes& times) {
    forward += kMilliseconds * times.forward.median;
    backward += kMilliseconds * times.backward.median;
    input += kMilliseconds * times.input.median;
    weight += kMilliseconds * times.weight.median;
    return *this;
  }
};

// The loss counts as part of the last layer; it has no weights.
std::vector<Cost> costs_of_layers(const ModelTimes& times, std::size_t layers) {
  std::vector<Cost> costs(layers);
  for (const probe::TimedKind& kind : times.kinds) {
    for (const std::int64_t layer : kind.layers) {
      costs[static_cast<std::size_t>(layer)] += kind.times;
    }
  }
  costs.back() += times.loss;
  return costs;
}

// Layers that are computed again have their forward in their backward, too.
std::vector<Cost> costs_of_stages(const std::vector<Cost>& layers,
                                  const partition::Partition& partition,
                                  const partition::ModelMeta& model,
                                  const partition::Recomputation& recomputation) {
  std::vector<Cost> costs;
  for (std::int32_t s = 0; s < partition.stages(); ++s) {
    Cost& stage = costs.emplace_back();
    const StageId id(s);
    for (const auto& range : partition::segment_ranges(model, partition.first_layer(id),
                                                       partition.end_layer(id), recomputation)) {
      for (auto i = range.first; i < range.end; ++i) {
        const Cost& layer = layers[static_cast<std::size_t>(i)];
        const double again = range.is_recomputed ? layer.forward : 0.0;
        stage.forward += layer.forward;
        stage.backward += layer.backward + again;
        stage.input += layer.input + again;
        stage.weight += layer.weight;
      }
    }
  }
  return costs;
}

simulate::Costs costs_file_of(const std::vector<Cost>& stages) {
  const auto all = [&](double Cost::* member) {
    std::vector<double> numbers;
    for (const Cost& stage : stages) numbers.push_back(stage.*member);
    return verify::PerStage(numbers);
  };
  return {.forward = all(&Cost::forward),
          .input = all(&Cost::input),
          .weight = all(&Cost::weight),
          .backward = all(&Cost::backward)};
}

std::string number(double value) { return formatted("%.3f", value); }

// "1.234 +0.100 -0.050": the median, and how far away the quartiles are.
std::string spread_text(const Spread& spread) {
  return str(number(kMilliseconds * spread.median), " +",
             number(kMilliseconds * (spread.upper - spread.median)), " -",
             number(kMilliseconds * (spread.median - spread.lower)));
}

TextRow head_of(const char* first) {
  return {first, "forward", "backward", "input half", "weight half", ""};
}

std::string kinds_text(const ModelTimes& times) {
  std::vector<TextRow> rows = {head_of("layers")};
  const auto add = [&](const std::string& name, const PassTimes& passes) {
    rows.push_back({name, spread_text(passes.forward), spread_text(passes.backward),
                    spread_text(passes.input), spread_text(passes.weight), ""});
  };
  for (const probe::TimedKind& kind : times.kinds) {
    add(str(kind.layers.size(), " x ", kind.type), kind.times);
  }
  add("loss", times.loss);
  return text_table(rows);
}

std::string stages_text(const std::vector<Cost>& stages) {
  std::vector<TextRow> rows = {head_of("stage")};
  for (std::size_t s = 0; s < stages.size(); ++s) {
    rows.push_back({std::to_string(s), number(stages[s].forward), number(stages[s].backward),
                    number(stages[s].input), number(stages[s].weight), ""});
  }
  return text_table(rows);
}

// A microbatch of random tokens.
run::TrainingInputs random_inputs(const config::ModelConfig& model, std::int64_t vocabulary,
                                  std::int64_t microbatch) {
  const auto tokens = [&] {
    return at::randint(vocabulary, {microbatch, model.sequence_length}, at::kLong);
  };
  return {.inputs = tokens(), .targets = tokens()};
}

// "microbatch of 4 samples, 1 thread".
std::string run_text(const config::Batch& batch) {
  const std::int64_t samples = batch.micro_batch_size;
  const int threads = at::get_num_threads();
  return str("microbatch of ", samples, samples == 1 ? " sample, " : " samples, ", threads,
             threads == 1 ? " thread" : " threads");
}

int threads_of(const ProfileCommand& command, std::int64_t ranks) {
  if (command.threads > 0) return command.threads;
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return at::get_num_threads();
  return launch::threads_of_rank(static_cast<int>(ranks));
}

int measure(const ProfileCommand& command, const config::Config& config) {
  const std::int64_t ranks = command.run.ranks(config.mesh);
  const mesh::Shape mesh = config::resolve_mesh(config.mesh, ranks);
  const config::Batch batch = config::resolve_batch(config.batch, mesh);
  const train::TrainerOptions options = run::options_of(config, mesh, batch);
  run::Model model = run::model_without_data(config);
  const auto schedule = lower::training_program(train::program_of(options));
  at::set_num_threads(threads_of(command, ranks));

  ProgressLines lines;
  const ModelTimes times =
      run::layer_times(options, model.layers, model.loss,
                       random_inputs(config.model, model.vocabulary, batch.micro_batch_size),
                       {.seconds = command.seconds, .progress = [&](double share) {
                          const auto percents = static_cast<int>(100.0 * share);
                          lines.at(str("profile: ", percents, "% of the time"));
                        }});
  const std::vector<Cost> layers = costs_of_layers(times, model.layers.size());
  const partition::ModelMeta meta = nn::meta_of(model.layers);
  const std::vector<Cost> stages = costs_of_stages(
      layers, partition::partition(meta, schedule.schedule().stages, options.partition), meta,
      options.checkpointing);
  if (!command.output.empty()) {
    const std::string text =
        str("// Measured by penstock profile of ", json_quote(command.run.config), ", by ",
            command.by_layer ? "layer" : "stage", ", ", run_text(batch), ".  Times in ms.\n",
            simulate::to_json(costs_file_of(command.by_layer ? layers : stages)), "\n");
    try {
      write_atomically(command.output, {text});
    } catch (const Error& error) {
      throw ConfigError(error.message());
    }
  }
  const std::string text = str("milliseconds of a ", run_text(batch), ": medians of ",
                               times.repeats, " repeats, and how far away the quartiles are\n\n",
                               kinds_text(times), "\n", stages_text(stages));
  write_result(text);
  return static_cast<int>(ExitCode::Ok);
}

// A row for each figure that is not of memory's size.
std::string device_text(const devices::DeviceModel& device) {
  const auto in = [](double value, double unit, const char* name) {
    return str(render::significant(value / unit), " ", name);
  };
  const auto of = [](double share) { return str(static_cast<int>(100 * share + 0.5), " % of it"); };
  constexpr double kGiga = 1e9, kMicro = 1e-6;
  return text_table({
      {"", "measured", ""},
      {"products, float", in(device.float_peak, kGiga, "GFLOP/s"), of(device.product_share)},
      {"products, bf16", in(device.short_peak, kGiga, "GFLOP/s"), of(device.product_share)},
      {"attention, forward", "", of(device.attention_share)},
      {"attention, backward", "", of(device.attention_backward_share)},
      {"memory", in(device.memory_bytes_per_s, kGiga, "GB/s"), of(device.memory_share)},
      {"copies from the host", in(device.copy_bytes_per_s, kGiga, "GB/s"), ""},
      {"kernel", in(device.kernel_s, kMicro, "us"), ""},
      {"launch", in(device.launch_s, kMicro, "us"), ""},
      {"links", in(device.link_bytes_per_s, kGiga, "GB/s"), of(device.link_share)},
      {"latency", in(device.link_s, kMicro, "us"), ""},
  });
}

int measure_this(const ProfileCommand& command) {
  probe::DeviceProbing probing{
      .device = at::hasCUDA() ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU),
      .ranks = command.run.nproc > 0 ? static_cast<std::int32_t>(command.run.nproc) : 2,
      .seconds = kOfDevice * command.seconds,
      .begins = [](const std::string& what) { write_message(str("penstock: profile: ", what)); }};
  const devices::DeviceModel device = probe::measure_device(probing);
  try {
    write_atomically(command.device, {devices::to_json(device)});
  } catch (const Error& error) {
    throw ConfigError(error.message());
  }
  write_result(device_text(device));
  return static_cast<int>(ExitCode::Ok);
}

}  // namespace

int run_profile(const ProfileCommand& command) {
  check(command);
  if (!command.device.empty()) return measure_this(command);
  const config::Config config =
      config::read_config(command.run.config, command.run.overrides).config;
  if (command.ledger) {
    try {
      const std::int64_t ranks = command.run.ranks(config.mesh);
      return run_ledger(command, config, threads_of(command, ranks));
    } catch (const Error& error) {
      throw Error(str(command.run.config, ": ", error.message()), error.notes(), error.exit_code());
    }
  }
  config::require_whole_layers(
      config, "profile", "one process runs whole layers, and nobody exchanges with it",
      {"a run measures what ranks that share layers take, exchanges included: costs.json in its "
       "folder, or penstock report RUN --costs FILE",
       "penstock plan and penstock emulate find it by shape, for a device"});
  try {
    return measure(command, config);
  } catch (const Error& error) {
    throw Error(str(command.run.config, ": ", error.message()), error.notes(), error.exit_code());
  }
}

}  // namespace penstock::cli
