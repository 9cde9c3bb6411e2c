#include "penstock/cli/plan/plan_inputs.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>

#include "penstock/cli/costs_file.h"
#include "penstock/cli/input_file.h"
#include "penstock/cli/plan/cost_options.h"
#include "penstock/cli/plan/runtime_program.h"
#include "penstock/cli/plan/train_command.h"
#include "penstock/core/byte_size.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/core/version.h"
#include "penstock/launch/process.h"
#include "penstock/plan/choose/checked_run.h"
#include "penstock/plan/config/resolve.h"
#include "penstock/plan/lower/programs.h"
#include "penstock/plan/partition/method.h"
#include "penstock/plan/render/number.h"

namespace penstock::cli {
namespace {

using render::significant;

// A name in the folder for temporary files, and no file afterwards.
class TemporaryFile {
 public:
  TemporaryFile()
      : path_((std::filesystem::temp_directory_path() / "penstock-layers-XXXXXX").string()) {
    const int descriptor = ::mkstemp(path_.data());
    if (descriptor < 0) throw Error(str("cannot make a file ", in_quotes(path_)));
    ::close(descriptor);
  }
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

memory::LayersFile read_layers_file(const std::string& path) {
  InputFile input = read_input("layers", path, memory::kLayersFileBytesMax);
  const auto source = std::make_shared<const json::Source>(
      json::Source{.name = std::move(input.name), .text = std::move(input.text)});
  return memory::read_layers(json::parse(source, memory::kLayersFileBytesMax));
}

std::vector<std::string> runtime_environment() {
  std::vector<std::string> variables = {str(kVersionVariable, "=", kVersion)};
  for (char** each = ::environ; *each != nullptr; ++each) {
    if (!std::string_view(*each).starts_with(str(kVersionVariable, "="))) {
      variables.emplace_back(*each);
    }
  }
  return variables;
}

// Numbers of ranks that share layers.  Measured costs are of whole layers, and nobody has measured
// how ranks share the cores of a node then.
std::vector<std::int32_t> tensor_of(const PlanInputs& inputs) {
  if (!inputs.tensor.empty()) return inputs.tensor;
  const bool is_whole = !inputs.costs.empty() || inputs.cores_per_node > 0;
  return is_whole ? std::vector<std::int32_t>{1} : std::vector<std::int32_t>{1, 2, 4, 8};
}

std::vector<std::int64_t> microbatches_of(const PlanInputs& inputs) {
  if (!inputs.microbatch_sizes.empty()) return inputs.microbatch_sizes;
  return {1, 2, 4, 8};
}

memory::LayersFile measure(const PlanInputs& inputs) {
  const TemporaryFile file;
  const std::vector<std::int64_t> sizes = microbatches_of(inputs);
  std::vector<std::string> words = {runtime_program(), "memory",    inputs.config,
                                    "--layers",        file.path(), "--microbatch-sizes",
                                    join(sizes, ",")};
  words.insert(words.end(), {"--tensor", join(tensor_of(inputs), ",")});
  if (const auto context = inputs.axes.contexts(); context != std::vector<std::int32_t>{1}) {
    words.insert(words.end(),
                 {"--context", join(context, ","), "--context-by", inputs.axes.context_by});
  }
  if (inputs.measure) words.emplace_back("--measure");
  if (!inputs.device.empty()) words.insert(words.end(), {"--set", "launch.device=cuda"});
  for (const config::Override& each : inputs.overrides) {
    words.insert(words.end(), {"--set", str(each.path, "=", each.value)});
  }
  const launch::Process process = launch::start_process(
      {.path = words.front(), .arguments = words, .environment = runtime_environment()});
  const launch::Ending ending = launch::reap(process.pid);
  if (ending != launch::Ending{}) {
    throw Error(str("plan: the program that measures the layers ", to_string(ending)),
                {"it is `penstock memory --layers`; where a layer is too large for this machine, "
                 "run that on another one, and give its file with --layers"});
  }
  return read_layers_file(file.path());
}

double speed(const std::string& text, const char* option) {
  const double number = number_of(text, option);
  if (number > 0.0) return number;
  throw ConfigError(str("plan: ", option, " ", text, ": expected a number above 0"));
}

Times times_from_costs(const PlanInputs& inputs, const config::Config& config,
                       const memory::LayersFile& layers) {
  const simulate::Costs costs = read_costs_file(inputs.costs);
  const mesh::Shape mesh = config::asked_shape(config);
  const config::Batch batch = config::resolve_batch(config.batch, mesh);
  const bool by_layer = choose::are_by_layer(costs, layers.model.size());
  const std::int32_t stages =
      by_layer ? static_cast<std::int32_t>(layers.model.size())
               : lower::training_program(choose::program_of(config, mesh)).schedule().stages;
  const partition::Partition measured =
      by_layer ? partition::one_layer_each(stages)
               : partition::partition(layers.model, stages, partition::method_of(config.pipeline));
  const std::vector<double> operations =
      choose::forward_operations(config.model, layers.model, layers.sizes.front());
  const auto size = static_cast<double>(batch.micro_batch_size);
  const auto of = [=](const memory::MeasuredSize& asked) {
    return choose::times_of(costs, measured, operations, size,
                            static_cast<double>(asked.microbatch));
  };
  of(layers.sizes.front());  // Refuses what does not fit.
  Times times{
      .of = of,
      .memory_bandwidth = inputs.bandwidth.empty() ? 0.0 : speed(inputs.bandwidth, "--bandwidth"),
      .origin = str(inputs.costs, ": milliseconds of ", stages,
                    by_layer      ? " layers"
                    : stages == 1 ? " stage, shared out by operations"
                                  : " stages, shared out by operations",
                    ", of microbatches of ", batch.micro_batch_size,
                    batch.micro_batch_size == 1 ? " sample" : " samples",
                    inputs.bandwidth.empty() ? "; the update takes no time" : "")};
  if (costs.latency > 0.0 || costs.bandwidth) {  // Zero and absent: nobody measured a message.
    times.link = {.latency = costs.latency / 1000.0};
    if (costs.bandwidth) times.link->bandwidth = *costs.bandwidth * 1000.0;
  }
  return times;
}

// What layers reach: as --flops and --bandwidth say, else as the named device does.
choose::Device speeds_of(const PlanInputs& inputs, const config::Config& config) {
  choose::Device speeds;
  if (const auto device = device_of(inputs)) {
    const bool is_short = config.bf16.enabled || config.fp16.enabled;
    speeds = {.flops = (is_short ? device->short_peak : device->float_peak) * device->product_share,
              .bandwidth = device->memory_bytes_per_s * device->memory_share,
              .kernels = device};
  }
  if (!inputs.flops.empty()) speeds.flops = speed(inputs.flops, "--flops");
  if (!inputs.bandwidth.empty()) speeds.bandwidth = speed(inputs.bandwidth, "--bandwidth");
  if (auto& device = speeds.kernels) {  // What was given apart rules for its kernels, too.
    if (!inputs.flops.empty()) {
      device->float_peak = device->short_peak = speeds.flops / device->product_share;
    }
    device->memory_bytes_per_s = speeds.bandwidth / device->memory_share;
  }
  return speeds;
}

Times times_from_device(const PlanInputs& inputs, const config::Config& config,
                        const memory::LayersFile& layers) {
  const choose::Device device = speeds_of(inputs, config);
  const auto of = [device, &layers, model = config.model](const memory::MeasuredSize& size) {
    return choose::times_on(device, model, layers.model, size);
  };
  return {.of = of,
          .memory_bandwidth = device.bandwidth,
          .kernels = device.kernels,
          .origin = str(inputs.device, inputs.device.empty() ? "" : ": ",
                        "operations and bytes of layers, at ", significant(device.flops),
                        " operations/s and ", significant(device.bandwidth), " bytes/s")};
}

[[noreturn]] void refuse_link(const PlanInputs& inputs) {
  throw ConfigError(str("plan: --link ", in_quotes(inputs.link),
                        ": expected a bandwidth and a latency of intra and inter, such as "
                        "intra=300GB/s:5us,inter=25GB/s:10us"),
                    {"sizes are whole numbers: 2500MB/s for two and a half gigabytes"});
}

double latency_of(const PlanInputs& inputs, const std::string& text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"us", 1e-6}, {"ms", 1e-3}, {"ns", 1e-9}, {"s", 1.0}};
  for (const auto& [unit, seconds] : kUnits) {
    if (!text.ends_with(unit) || text.size() == unit.size()) continue;
    return number_of(text.substr(0, text.size() - unit.size()), "--link") * seconds;
  }
  refuse_link(inputs);
}

choose::LinkSpeed link_of(const PlanInputs& inputs, const std::string& text) {
  const std::vector<std::string> parts = split(text, ':');
  if (parts.empty() || parts.size() > 2 || !parts[0].ends_with("/s")) refuse_link(inputs);
  const auto bytes = parse_bytes(parts[0].substr(0, parts[0].size() - 2));
  if (!bytes || *bytes == 0) refuse_link(inputs);
  choose::LinkSpeed link{.bandwidth = static_cast<double>(*bytes)};
  if (parts.size() == 2) link.latency = latency_of(inputs, std::string(trim(parts[1])));
  return link;
}

std::string link_text(const choose::LinkSpeed& link) {
  return str(link.bandwidth ? str(significant(*link.bandwidth), " bytes/s") : "any bandwidth", ", ",
             significant(link.latency * 1e6), " us");
}

// Throws: ConfigError for sizes that are asked for and not in the file.
void require_sizes(const PlanInputs& inputs, const memory::LayersFile& file) {
  const auto require = [&](const auto& asked, std::int64_t memory::MeasuredSize::* of,
                           const char* option) {
    std::set<std::int64_t> known;
    for (const memory::MeasuredSize& size : file.sizes) known.insert(size.*of);
    for (const std::int64_t size : asked) {
      if (known.contains(size)) continue;
      throw ConfigError(str("plan: ", option, " ", size, ": ", inputs.layers, " has ",
                            join(std::vector<std::int64_t>(known.begin(), known.end()), ", ")),
                        {str("write the file anew with `penstock memory --layers ", option, "`")});
    }
  };
  require(inputs.microbatch_sizes, &memory::MeasuredSize::microbatch, "--microbatch-sizes");
  require(inputs.tensor, &memory::MeasuredSize::sharers, "--tensor");
  require(inputs.axes.context, &memory::MeasuredSize::context, "--context");
}

}  // namespace

void declare_plan_inputs(CLI::App& app, PlanInputs& inputs) {
  app.add_option("--tensor", inputs.tensor,
                 "numbers of ranks that share layers to try, as far as layers allow it (default:\n"
                 "those of --layers, else 1,2,4,8; with --costs or --cores-per-node 1)")
      ->type_name("N,N")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 10));
  app.add_option("--layers", inputs.layers,
                 "what single layers take, of `penstock memory --layers` (default: what their\n"
                 "shapes say)")
      ->type_name("FILE");
  app.add_flag("--measure", inputs.measure,
               "run a layer of each kind at full size, to see what it takes")
      ->excludes("--layers");
  app.add_option("--microbatch-sizes", inputs.microbatch_sizes,
                 "samples in a microbatch to try (default: those of --layers, else 1,2,4,8)")
      ->type_name("N,N")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20));
  CLI::Option* const costs =
      app.add_option("--costs", inputs.costs,
                     "what stages cost, as `penstock report` fits it to a run of CONFIG, or\n"
                     "`penstock profile` measures it; of single layers: profile --by-layer")
          ->type_name("FILE")
          ->group("Costs and links");
  app.add_option("--device", inputs.device,
                 "a device by its name, or a .json file of figures, as penstock emulate takes it:\n"
                 "what layers reach, links, ranks of a node, and --memory; all can be given apart")
      ->type_name("NAME")
      ->group("Costs and links")
      ->excludes(costs);
  app.add_option("--flops", inputs.flops, "operations per second that a layer reaches")
      ->type_name("X")
      ->group("Costs and links")
      ->excludes(costs);
  app.add_option("--bandwidth", inputs.bandwidth, "bytes per second of a device's memory")
      ->type_name("X")
      ->group("Costs and links");
  app.add_option("--link", inputs.link,
                 "links within a node and between nodes: intra=300GB/s:5us,inter=25GB/s:10us\n"
                 "(default: that of --costs, else messages take no time)")
      ->type_name("LINKS")
      ->group("Costs and links");
  app.add_option("--ranks-per-node", inputs.ranks_per_node, "ranks of a node (default: all)")
      ->type_name("N")
      ->group("Costs and links")
      ->check(CLI::Range(1, 1 << 20));
  CLI::Option* const cores =
      app.add_option("--cores-per-node", inputs.cores_per_node,
                     "cores of a node, where its ranks compute on them (default: each\n"
                     "rank has a device)")
          ->type_name("N")
          ->group("Costs and links")
          ->check(CLI::Range(1, 1 << 20));
  app.add_option("--crowding", inputs.crowding,
                 "how many times longer computations take while ranks share a core, besides the\n"
                 "wait for it")
      ->type_name("X")
      ->group("Costs and links")
      ->needs(cores)
      ->capture_default_str()
      ->check(CLI::Range(1.0, 100.0));
}

std::optional<devices::DeviceModel> device_of(const PlanInputs& inputs) {
  if (inputs.device.empty()) return std::nullopt;
  return devices::device_model(inputs.device);
}

void check_plan_inputs(const PlanInputs& inputs) {
  const bool has_tensor = std::ranges::any_of(tensor_of(inputs), [](auto n) { return n > 1; });
  if (has_tensor && (!inputs.costs.empty() || inputs.cores_per_node > 0)) {
    throw ConfigError("plan: --tensor above 1: --costs and --cores-per-node are of whole layers",
                      {"--device, or --flops and --bandwidth, give the times of parts, too"});
  }
  const bool has_speeds =
      !inputs.device.empty() || (!inputs.flops.empty() && !inputs.bandwidth.empty());
  if (inputs.costs.empty() && !has_speeds) {
    throw ConfigError(
        "plan: how long do layers take? --costs, or --flops and --bandwidth, or "
        "--device, say it",
        {"--device h100-sxm: what such a device reaches, with its memory and links",
         "--costs FILE: measured by `penstock profile`, or fitted to a run of this "
         "configuration by `penstock report`",
         "--flops 150e12 --bandwidth 2e12: what a device reaches"});
  }
  if (!inputs.flops.empty()) speed(inputs.flops, "--flops");
  if (!inputs.bandwidth.empty()) speed(inputs.bandwidth, "--bandwidth");
  links_of(inputs, {});
}

Layers layers_of(const PlanInputs& inputs, const config::Config& config) {
  if (inputs.layers.empty()) {
    auto shape = shape_with_experts(config);
    if (!shape) return {.file = measure(inputs)};
    Layers layers{.shaped = ShapedLayers(config, *std::move(shape), inputs.axes)};
    layers.file = layers.shaped->file(microbatches_of(inputs), tensor_of(inputs));
    return layers;
  }
  memory::LayersFile file = read_layers_file(inputs.layers);
  if (file.made_for != memory::made_for(config)) {
    throw ConfigError(
        str("plan: --layers ", in_quotes(inputs.layers), " is of another model than ",
            inputs.config),
        {str("the file: ", file.made_for), str(inputs.config, ": ", memory::made_for(config))});
  }
  require_sizes(inputs, file);
  const std::vector<std::int32_t> tensor = tensor_of(inputs);
  std::erase_if(file.sizes, [&](const memory::MeasuredSize& size) {
    const auto& asked = inputs.microbatch_sizes;
    return std::ranges::count(tensor, size.sharers) == 0 ||
           (!asked.empty() && std::ranges::count(asked, size.microbatch) == 0);
  });
  return {.file = std::move(file)};
}

std::string layers_text(const PlanInputs& inputs, const Layers& layers) {
  const auto all = [&](std::int64_t memory::MeasuredSize::* of) {
    std::set<std::int64_t> sizes;
    for (const memory::MeasuredSize& size : layers.file.sizes) sizes.insert(size.*of);
    return std::vector<std::int64_t>(sizes.begin(), sizes.end());
  };
  const std::vector<std::int64_t> sharers = all(&memory::MeasuredSize::sharers);
  const bool is_whole = sharers == std::vector<std::int64_t>{1};
  const char* const how = layers.shaped    ? "layers by formula, of fused kernels"
                          : inputs.measure ? "layers measured now"
                                           : "layers by shape";
  return str(inputs.layers.empty() ? how : inputs.layers, ", for microbatches of ",
             join(all(&memory::MeasuredSize::microbatch), ", "), " samples",
             is_whole ? "" : str(", and tensor ", join(sharers, ", ")));
}

Times times_of(const PlanInputs& inputs, const config::Config& config,
               const memory::LayersFile& layers) {
  if (!inputs.costs.empty()) return times_from_costs(inputs, config, layers);
  return times_from_device(inputs, config, layers);
}

Links links_of(const PlanInputs& inputs, const Times& times) {
  choose::Network network{.ranks_per_node = inputs.ranks_per_node,
                          .cores_per_node = inputs.cores_per_node,
                          .crowding = inputs.crowding};
  const auto nodes = [&] {
    return network.ranks_per_node > 0 ? str("; between nodes of ", network.ranks_per_node,
                                            " ranks ", link_text(network.inter))
                                      : "";
  };
  const auto device = device_of(inputs);
  if (device && network.ranks_per_node == 0) network.ranks_per_node = device->devices_per_host;
  if (device && inputs.link.empty()) {
    network.intra = {.latency = device->link_s,
                     .bandwidth = device->link_bytes_per_s * device->link_share};
    network.inter = {.latency = device->network_s,
                     .bandwidth = device->network_bytes_per_s * device->link_share};
    network.by_node = device->network_bytes_per_s * devices::kByNodeShare;
    return {network, str("of ", inputs.device, ": ", link_text(network.intra), nodes())};
  }
  if (inputs.link.empty()) {
    if (!times.link) return {network, "not given with --link: messages and sums take no time"};
    network.intra = network.inter = *times.link;
    return {network, str("of ", inputs.costs, ": ", link_text(*times.link))};
  }
  std::optional<choose::LinkSpeed> intra, inter;
  for (const std::string& part : split(inputs.link, ',')) {
    const std::vector<std::string> words = split(part, '=');
    if (words.size() != 2) refuse_link(inputs);
    const std::string_view name = trim(words[0]);
    if (name != "intra" && name != "inter") refuse_link(inputs);
    (name == "intra" ? intra : inter) = link_of(inputs, std::string(trim(words[1])));
  }
  network.intra = intra ? *intra : *inter;
  network.inter = inter ? *inter : *intra;
  return {network, str(link_text(network.intra), nodes())};
}

}  // namespace penstock::cli
