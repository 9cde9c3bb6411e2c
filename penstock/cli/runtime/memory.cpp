#include "penstock/cli/runtime/memory.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "penstock/cli/formatted.h"
#include "penstock/config/read.h"
#include "penstock/config/validate.h"
#include "penstock/core/atomic_file.h"
#include "penstock/core/error.h"
#include "penstock/core/program_output.h"
#include "penstock/core/progress_lines.h"
#include "penstock/core/text.h"
#include "penstock/plan/config/resolve.h"
#include "penstock/plan/memory/layers_file.h"
#include "penstock/plan/memory/token_shares.h"
#include "penstock/runtime/emulate/by_shape.h"
#include "penstock/runtime/rank/device.h"
#include "penstock/runtime/run/from_config.h"
#include "penstock/runtime/run/run_memory.h"
#include "penstock/runtime/train/shared_layers.h"

namespace penstock::cli {
namespace {

using memory::Bytes;
using run::PipeRank;

struct Column {
  const char* name;
  std::int64_t Bytes::* bytes;
};
constexpr std::array<Column, 8> kColumns = {{
    {"parameters", &Bytes::parameters},
    {"gradients", &Bytes::gradients},
    {"optimizer", &Bytes::optimizer},
    {"activations", &Bytes::activations},
    {"buckets", &Bytes::buckets},
    {"messages", &Bytes::messages},
    {"batch", &Bytes::batch},
    {"checkpoint", &Bytes::copies},
}};

std::string mebibytes(std::int64_t bytes) {
  return formatted("%.2f", static_cast<double>(bytes) / (1 << 20));
}

std::string stages_of(const PipeRank& rank) { return join(rank.stages, ","); }

std::string row(const std::vector<std::string>& cells) {
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    std::array<char, 64> text{};
    std::snprintf(text.data(), text.size(), i + 1 == cells.size() ? "  %s" : "%13s",
                  cells[i].c_str());
    line += text.data();
  }
  return line + "\n";
}

std::string table(const std::vector<PipeRank>& ranks) {
  std::vector<std::string> head = {"pipe rank", "stages"};
  for (const Column& column : kColumns) head.emplace_back(column.name);
  head.insert(head.end(), {"peak", "at"});
  std::string text = row(head);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const PipeRank& rank = ranks[i];
    std::vector<std::string> cells = {std::to_string(i), stages_of(rank)};
    for (const Column& column : kColumns) {
      cells.push_back(mebibytes(rank.memory.peak.*column.bytes));
    }
    cells.insert(cells.end(), {mebibytes(rank.memory.peak.total()), rank.memory.at});
    text += row(cells);
  }
  return text;
}

// What is elsewhere than in the memory of a step; "" where nothing is.
std::string elsewhere(const std::vector<PipeRank>& ranks, const char* what,
                      std::int64_t PipeRank::* bytes) {
  std::vector<std::string> sizes;
  bool any = false;
  for (const PipeRank& rank : ranks) {
    sizes.push_back(mebibytes(rank.*bytes));
    any |= rank.*bytes > 0;
  }
  return any ? str(what, ", by pipe rank: ", join(sizes, ", "), "\n") : "";
}

// Who has which parameter, of each stage.
std::string ownership(const std::vector<PipeRank>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    for (std::size_t s = 0; s < ranks[i].stages.size(); ++s) {
      text += str("stage ", ranks[i].stages[s], " on pipe rank ", i, "; ranks are of its ",
                  "data group\n", partition::to_string(ranks[i].ownership[s]));
    }
  }
  return text;
}

// `how`: how layers were run.
std::string as_text(const mesh::Shape& mesh, const std::vector<PipeRank>& ranks,
                    const std::string& how) {
  const char* const which =
      mesh[mesh::Axis::Tensor] > 1 ? "; of ranks that share layers the first, which has most" : "";
  return str("MiB at the peak of a step; ", mesh::in_words(mesh), ", the same on every replica",
             which, "; ", how, "\n", table(ranks),
             elsewhere(ranks, "in files", &PipeRank::file_bytes),
             elsewhere(ranks, "copies for checkpoints in host memory", &PipeRank::host_copy_bytes));
}

std::string bytes_json(const Bytes& bytes) {
  std::vector<std::string> members;
  for (const Column& column : kColumns) {
    members.push_back(str(json_quote(column.name), ": ", bytes.*column.bytes));
  }
  members.push_back(str("\"total\": ", bytes.total()));
  return "{" + join(members, ", ") + "}";
}

std::string to_json(const mesh::Shape& mesh, const std::vector<PipeRank>& ranks) {
  std::vector<std::string> items;
  for (const PipeRank& rank : ranks) {
    items.push_back(str("{\"stages\": [", stages_of(rank), "], \"peak_activations\": ",
                        rank.memory.live_activations, ", \"at\": ", json_quote(rank.memory.at),
                        ",\n   \"between_steps\": ", bytes_json(rank.memory.between_steps),
                        ",\n   \"peak\": ", bytes_json(rank.memory.peak), ",\n   \"file\": ",
                        rank.file_bytes, ", \"host_copy\": ", rank.host_copy_bytes, "}"));
  }
  return str("{", mesh::json_members(mesh), ", \"pipe_ranks\": [\n  ", join(items, ",\n  "),
             "]}\n");
}

// Bytes of a sample's input and target.
std::int64_t sample_bytes(const config::ModelConfig& model) {
  return 2 * model.sequence_length * static_cast<std::int64_t>(c10::elementSize(at::kLong));
}

// Copies on the device that a run on this machine would have; by shape, on that which it asks for.
memory::Copies copies_of(const config::Config& config, bool by_shape) {
  if (by_shape) return memory::copies_of(config, config.launch.device);
  const bool is_host = rank::choose_device(config.launch.device, /*local_rank=*/0).is_cpu();
  return memory::copies_of(config, is_host ? config::Device::Cpu : config::Device::Cuda);
}

// A model, and how its layers run.
struct Told {
  run::Model model;
  bool by_shape = false;
  bool is_cuda = false;  // The device that the configuration names.
  memory::Copies copies = memory::Copies::Absent;
  probe::Place place;
  std::unique_ptr<ProgressLines> lines = std::make_unique<ProgressLines>();

  Told(const MemoryCommand& command, const config::Config& config)
      : by_shape(!command.measure && emulate::can_run_by_shape()),
        is_cuda(config.launch.device == config::Device::Cuda) {
    model = by_shape ? run::model_without_weights(config) : run::model_without_data(config);
    copies = copies_of(config, by_shape);
    place = by_shape
                ? emulate::place_by_shape(is_cuda ? emulate::Kernels::Cuda : emulate::Kernels::Host)
                : probe::host();
  }

  std::string how() const {
    if (!by_shape) return "layers measured";
    return str("layers by shape, on ", is_cuda ? "CUDA devices" : "processors");
  }

  // A microbatch such as the configuration's data give, of which so many ranks have a part of the
  // tokens each.
  run::TrainingInputs inputs(const config::Config& config, const config::Batch& batch,
                             std::int32_t context = 1) const {
    const at::Tensor tokens =
        at::zeros({batch.micro_batch_size, config.model.sequence_length / context}, at::kLong);
    const std::int64_t samples = batch.micro_batch_size * batch.microbatches;
    return {
        .inputs = tokens,
        .targets = tokens,
        .batch_bytes = samples * sample_bytes(config.model),
        .place = place,
        .begins = [this](const std::string& what) { lines->at(str("memory: measuring ", what)); }};
  }
};

// Whether a run could have so many ranks that share the layers.  Where other numbers could, says
// why not.
bool can_share(const config::Config& config, const std::vector<nn::LayerSpec>& layers,
               const nn::Loss& loss, std::int32_t sharers) {
  const auto has_pieces = [](const nn::LayerSpec& layer) { return !layer.meta.pieces.empty(); };
  if (std::ranges::none_of(layers, has_pieces)) return false;
  try {
    const mesh::Shape mesh = mesh::Shape{}.with(mesh::Axis::Tensor, sharers);
    config::Config of_sharers = config;
    of_sharers.mesh = config::config_of(mesh);
    config::validate(of_sharers);
    const config::Batch batch = config::resolve_batch(config.batch, mesh);
    const train::TrainerOptions options = run::options_of(of_sharers, mesh, batch);
    train::check_shared_layers(options, layers, loss);
    train::check_shares(layers, sharers, train::blocks_of_layers(options));
  } catch (const Error& error) {
    write_message(
        str("penstock: memory: no layout with mesh.tensor ", sharers, ": ", error.message()));
    return false;
  }
  return true;
}

// Bytes of keys and values that a rank has of its own tokens, in each layer.
std::int64_t key_value_bytes(const config::Config& config, const run::Model& model,
                             const memory::MeasuredSize& size) {
  std::int64_t heads = config.model.heads, head = config.model.hidden / config.model.heads;
  if (model.folder) {
    heads = model.folder->options().kv_heads;
    head = model.folder->options().head_dim;
  }
  const std::int64_t here = std::max<std::int64_t>(heads / size.sharers, 1);
  const std::int64_t bytes = config.bf16.enabled || config.fp16.enabled ? 2 : 4;
  const std::int64_t tokens = size.microbatch * config.model.sequence_length / size.context;
  return tokens * 2 * here * head * bytes;
}

// Adds what ranks do that share the tokens of a sample.
void share_tokens(const MemoryCommand& command, const config::Config& config,
                  const run::Model& model, memory::MeasuredSize& size) {
  const std::int64_t bytes = key_value_bytes(config, model, size);
  const memory::ExchangeWay way = memory::context_way(command.context_by);
  for (auto* const layers : {&size.memory.layers, &size.memory.again}) {
    for (memory::LayerMemory& each : *layers) {
      memory::share_tokens(size.context, bytes, way, each);
    }
  }
}

// Numbers of ranks that can share the tokens: each has two chunks.
std::set<std::int32_t> contexts_of(const MemoryCommand& command, const config::Config& config) {
  std::set<std::int32_t> contexts = {1};
  for (const std::int32_t ranks : command.context) {
    if (memory::can_share_tokens(config.model.sequence_length, ranks)) {
      contexts.insert(ranks);
    } else {
      write_message(str("penstock: memory: no layout with mesh.context ", ranks,
                        ": it does not divide half of the ", config.model.sequence_length,
                        " tokens"));
    }
  }
  if (!command.context.empty() && std::ranges::count(command.context, 1) == 0) contexts.erase(1);
  return contexts;
}

// Whether a selective size keeps less than the plain one: some layers have no such form.
bool keeps_less(const memory::MeasuredSize& selective, const memory::MeasuredSize& plain) {
  return !std::ranges::equal(selective.memory.layers, plain.memory.layers, {},
                             &memory::LayerMemory::kept, &memory::LayerMemory::kept);
}

// The configuration with its blocks selective, or not.
config::Config with_selective(config::Config config, bool is_selective) {
  config.model.activation_checkpoint =
      is_selective ? config::ActivationCheckpoint::Selective : config::ActivationCheckpoint::Off;
  return config;
}

// Says what is not in what is told.
void tell_of_partial_sums(const config::Config& config) {
  if (!config.numerics.invariant) return;
  write_message(
      "penstock: memory: numerics.invariant keeps partial sums of gradients, whole in every stage "
      "of ZeRO: they are not counted");
}

// What single layers take, for each size of microbatch, of no layout.
void write_layers(const MemoryCommand& command, const config::Config& config, config::Batch batch) {
  Told told(command, with_selective(config, false));
  std::vector<nn::LayerSpec>& layers = told.model.layers;
  // Told by shape alone: to measure takes as long again.
  std::optional<run::Model> selective;
  const bool is_folder = config.model.type == config::ModelType::HuggingFace;
  if (is_folder && told.by_shape) {
    selective = run::model_without_weights(with_selective(config, true));
  }
  memory::LayersFile file{.made_for = memory::made_for(config),
                          .model = nn::meta_of(layers),
                          .sample_bytes = sample_bytes(config.model)};
  std::set<std::int64_t> sizes(command.microbatch_sizes.begin(), command.microbatch_sizes.end());
  if (sizes.empty()) sizes.insert(batch.micro_batch_size);
  std::set<std::int32_t> tensor(command.tensor.begin(), command.tensor.end());
  if (tensor.empty()) tensor.insert(1);
  for (const std::int32_t sharers : tensor) {
    if (sharers > 1 && !can_share(config, layers, told.model.loss, sharers)) continue;
    const mesh::Shape mesh = mesh::Shape{}.with(mesh::Axis::Tensor, sharers);
    for (const std::int32_t context : contexts_of(command, config)) {
      for (const std::int64_t size : sizes) {
        batch.micro_batch_size = size;
        const auto measured = [&](run::Model& of, bool is_selective) {
          memory::MeasuredSize of_size{
              .microbatch = size,
              .sharers = sharers,
              .context = context,
              .is_selective = is_selective,
              .memory = run::layer_memory(run::options_of(config, mesh, batch), of.layers, of.loss,
                                          told.inputs(config, batch, context))};
          share_tokens(command, config, of, of_size);
          return of_size;
        };
        file.sizes.push_back(measured(told.model, false));
        if (!selective) continue;
        memory::MeasuredSize less = measured(*selective, true);
        if (keeps_less(less, file.sizes.back())) file.sizes.push_back(std::move(less));
      }
    }
  }
  const std::string text = memory::to_json(file);
  try {
    write_atomically(command.layers, {text});
  } catch (const Error& error) {
    throw ConfigError(error.message());
  }
}

}  // namespace

int run_memory(const MemoryCommand& command) {
  const config::Config config =
      config::read_config(command.run.config, command.run.overrides).config;
  at::set_num_threads(1);  // Same as in a rank: kernels may take memory for each thread.
  try {
    const std::int64_t ranks = command.run.ranks(config.mesh);
    const mesh::Shape mesh = config::resolve_mesh(config.mesh, ranks);
    const config::Batch batch = config::resolve_batch(config.batch, mesh);
    tell_of_partial_sums(config);
    if (!command.layers.empty()) {
      write_layers(command, config, batch);
      return static_cast<int>(ExitCode::Ok);
    }
    const Told told(command, config);
    const std::vector<PipeRank> told_ranks =
        run::run_memory(run::options_of(config, mesh, batch), told.model.layers, told.model.loss,
                        told.inputs(config, batch), told.copies);
    const std::string text = command.json         ? to_json(mesh, told_ranks)
                             : command.parameters ? ownership(told_ranks)
                                                  : as_text(mesh, told_ranks, told.how());
    write_result(text);
  } catch (const Error& error) {
    throw Error(str(command.run.config, ": ", error.message()), error.notes(), error.exit_code());
  }
  return static_cast<int>(ExitCode::Ok);
}

}  // namespace penstock::cli
