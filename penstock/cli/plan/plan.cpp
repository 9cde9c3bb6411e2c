#include <algorithm>
#include <limits>
#include <memory>
#include <set>

#include "penstock/cli/overrides.h"
#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/cost_options.h"
#include "penstock/cli/plan/output.h"
#include "penstock/cli/plan/plan_inputs.h"
#include "penstock/cli/plan/plan_tables.h"
#include "penstock/config/read.h"
#include "penstock/core/byte_size.h"
#include "penstock/core/error.h"
#include "penstock/core/progress_lines.h"
#include "penstock/core/text.h"
#include "penstock/plan/choose/planner.h"
#include "penstock/plan/config/optimizer_states.h"
#include "penstock/plan/config/resolve.h"
#include "penstock/plan/config/whole_layers.h"
#include "penstock/plan/config/write.h"
#include "penstock/plan/simulate/costs_json.h"

namespace penstock::cli {
namespace {

using choose::Plans;
using choose::Request;

struct PlanCommand {
  PlanInputs inputs;
  std::int64_t world = 0;
  std::string memory;
  std::vector<int> zero = {0, 1, 2, 3};
  bool recompute = true;
  std::int32_t top = 10;
  std::string offload;            // DIR=SPEED; "": nothing is in files.
  std::vector<std::string> only;  // Layouts to price, as asked_layout() reads them.
  std::optional<std::size_t> against;
  std::optional<std::size_t> explain;
  std::string write;
  std::int64_t experts = 0;  // Experts of a layer, as the model has them.
  std::string format = "text";
  std::string output;
};

std::int64_t memory_limit(const PlanCommand& command) {
  const std::string& text = command.memory;
  if (text.empty()) {
    const auto device = device_of(command.inputs);
    if (device) return static_cast<std::int64_t>(device->memory_bytes);
    if (!command.only.empty()) return std::numeric_limits<std::int64_t>::max();
    throw ConfigError("plan: --memory is required: what a rank may take, such as 80GB",
                      {"--device h100-sxm says it, too"});
  }
  const auto bytes = parse_bytes(text);
  if (bytes && *bytes > 0) return static_cast<std::int64_t>(*bytes);
  throw ConfigError(str("plan: --memory ", in_quotes(text), ": expected bytes such as 80GB"));
}

// Samples of a step on all replicas: the user's, whatever the layout.
std::int64_t samples_of(const config::Config& config) {
  if (config.batch.train_batch_size) return *config.batch.train_batch_size;
  return config::resolve_batch(config.batch, config::asked_shape(config.mesh)).train_batch_size;
}

struct Files {
  std::string folder;
  double bandwidth = 0.0;  // 0: none are tried.
};

Files files_of(const std::string& text) {
  if (text.empty()) return {};
  const std::size_t at = text.rfind('=');
  const std::string speed = at == std::string::npos ? "" : text.substr(at + 1);
  const auto bytes =
      speed.ends_with("/s") ? parse_bytes(speed.substr(0, speed.size() - 2)) : std::nullopt;
  if (at != 0 && bytes && *bytes > 0) {
    return {.folder = text.substr(0, at), .bandwidth = static_cast<double>(*bytes)};
  }
  throw ConfigError(str("plan: --offload ", in_quotes(text),
                        ": expected a folder and how fast its files are read and written, such as "
                        "/scratch=3GB/s"),
                    {"speeds are whole numbers: 2500MB/s"});
}

// Whether the optimizer has anything that could be in a file.
bool has_states(const config::Config& config) {
  return config::states_per_parameter(config.optimizer) > 0 || config.bf16.enabled ||
         config.fp16.enabled;
}

bool is_selective(const config::Config& config) {
  return config.model.activation_checkpoint == config::ActivationCheckpoint::Selective;
}

choose::Choices choices_of(const PlanCommand& command, const config::Config& config,
                           const memory::LayersFile& layers, std::int32_t ranks_per_node) {
  choose::Choices choices{.world = static_cast<std::int32_t>(command.world),
                          .samples = samples_of(config),
                          .layers = std::ssize(layers.model),
                          .ranks_per_node = ranks_per_node};
  std::set<std::int64_t> microbatches;
  std::set<std::int32_t> tensor, context;
  for (const memory::MeasuredSize& size : layers.sizes) {
    microbatches.insert(size.microbatch);
    tensor.insert(static_cast<std::int32_t>(size.sharers));
    context.insert(static_cast<std::int32_t>(size.context));
  }
  choices.microbatches.assign(microbatches.begin(), microbatches.end());
  choices.tensor.assign(tensor.begin(), tensor.end());
  add_axes(command.inputs.axes, config, command.experts, choices);
  // Layers by formula are of any size.
  if (command.experts == 0) {
    std::erase_if(choices.context, [&](std::int32_t ranks) { return !context.contains(ranks); });
  }
  for (const int stage : command.zero) {
    choices.zero.push_back(static_cast<choose::ZeroStage>(stage));
  }
  if (command.recompute) {
    const std::int64_t own = config.pipeline.activation_checkpoint_interval;
    choices.recompute_intervals.push_back(std::max<std::int64_t>(own, 1));
  }
  // Kernels alone say what selective blocks take longer.
  const bool has_selective = std::ranges::any_of(layers.sizes, &memory::MeasuredSize::is_selective);
  const bool own_selective = is_selective(config) && has_selective;
  choices.selective = {own_selective};
  if (has_selective && command.recompute && !command.inputs.device.empty()) {
    choices.selective = {false, true};
  }
  if (!command.offload.empty()) {
    if (has_states(config)) choices.offloads.push_back(choose::Offload::States);
    choices.offloads.push_back(choose::Offload::StatesAndParameters);
  }
  return choices;
}

// No sizes fit: what would.
[[noreturn]] void refuse_sizes(const Request& request) {
  const choose::Choices& choices = request.choices;
  std::vector<std::string> notes;
  std::vector<std::int64_t> worlds;
  for (std::int64_t world = choices.world; world > 0 && worlds.size() < 2; --world) {
    choose::Choices fewer = choices;
    fewer.world = static_cast<std::int32_t>(world);
    if (!all_layouts(fewer).empty()) worlds.push_back(world);
  }
  if (!worlds.empty()) notes.push_back(str("so many ranks would do: ", join(worlds, ", ")));
  const std::int64_t replicas = choices.world;
  const std::int64_t samples = (choices.samples + replicas - 1) / replicas * replicas;
  choose::Choices more = choices;
  more.samples = samples;
  if (!all_layouts(more).empty()) {
    notes.push_back(str("or a train_batch_size of ", samples, ", a multiple of the ranks"));
  }
  throw Error(
      str("plan: no layout of ", choices.world, " ranks has a step of ", choices.samples,
          " samples: ", choices.tensor.size() > 1 ? "pipe x data x tensor is " : "pipe x data is ",
          choices.world, ", with at most ", choices.layers, " stages, and microbatches of ",
          join(choices.microbatches, ", "), " samples have to make up the samples of a replica"),
      notes);
}

// All are too large: what would fit.
[[noreturn]] void refuse_memory(const Request& request) {
  const choose::TooLarge least = choose::least_memory(request);
  const auto size = [](std::int64_t bytes) { return mebibytes(static_cast<std::uint64_t>(bytes)); };
  std::vector<std::string> notes = {str("allow ", size(least.bytes), " (", least.bytes,
                                        " bytes): so much takes ", to_string(least.layout))};
  for (std::int64_t world = 2 * std::int64_t{request.choices.world};
       world <= 64 * std::int64_t{request.choices.world} && world <= (1 << 20); world *= 2) {
    Request more = request;
    more.choices.world = static_cast<std::int32_t>(world);
    more.top = 1;
    const Plans plans = choose::plan(more);
    if (plans.candidates.empty()) continue;
    notes.push_back(str("or take ", world, " ranks: ", to_string(plans.candidates.front().layout)));
    break;
  }
  if (request.choices.offloads.size() == 1) {
    notes.push_back("or keep optimizer states in files, with --offload DIR=SPEED");
  }
  if (request.choices.microbatches.front() > 1) {
    notes.push_back(str("or try smaller microbatches than ", request.choices.microbatches.front(),
                        " samples, with --microbatch-sizes"));
  }
  throw Error(str("plan: none of the layouts of ", request.choices.world, " ranks fits into ",
                  size(request.memory_max), " a rank"),
              notes);
}

Plans plans_of(const Request& request) {
  Plans plans = choose::plan(request);
  if (plans.layouts == 0) refuse_sizes(request);
  if (plans.candidates.empty()) refuse_memory(request);
  return plans;
}

std::string formatted(const PlanCommand& command, const PlanQuestion& question,
                      const Plans& plans) {
  if (command.format == "json") return plan_json(question, plans);
  if (command.format == "csv") return plan_csv(question, plans);
  if (command.format == "svg") return plan_svg(plans);
  if (command.format == "html") return plan_page(question, plans);
  const std::string why = command.explain ? plan_explanation(plans, *command.explain) : "";
  return plan_text(question, plans) + why;
}

// What layouts that are asked for have to fit, as far as it is known.
choose::Frame frame_of(const PlanCommand& command, const config::Config& config,
                       std::int64_t layers) {
  return {
      .world = command.world,
      .samples = samples_of(config),
      .layers = layers,
      .tokens = config.model.sequence_length,
      .experts = command.experts,
      .ranks_per_node = links_of(command.inputs, {}).network.ranks_per_node,
      .full_interval = std::max<std::int64_t>(config.pipeline.activation_checkpoint_interval, 1)};
}

// Asks for the sizes that the layouts have, where these are found now.
void add_sizes(const PlanCommand& command, const config::Config& config, PlanInputs& inputs) {
  if (!inputs.layers.empty()) return;
  std::set<std::int64_t> microbatches(inputs.microbatch_sizes.begin(),
                                      inputs.microbatch_sizes.end());
  std::set<std::int32_t> tensor(inputs.tensor.begin(), inputs.tensor.end());
  const std::vector<std::int32_t> contexts = inputs.axes.contexts();
  std::set<std::int32_t> context(contexts.begin(), contexts.end());
  tensor.insert(1);  // What every model has.
  if (command.against && microbatches.empty()) microbatches = {1, 2, 4, 8};
  if (command.against && inputs.tensor.empty()) tensor = {1, 2, 4, 8};
  const choose::Frame frame = frame_of(command, config, std::numeric_limits<std::int64_t>::max());
  for (const std::string& text : command.only) {
    const choose::Layout layout = choose::asked_layout(text, frame).layout;
    microbatches.insert(layout.microbatch);
    tensor.insert(layout.tensor());
    context.insert(layout.context());
  }
  inputs.axes.context.assign(context.begin(), context.end());
  inputs.microbatch_sizes.assign(microbatches.begin(), microbatches.end());
  inputs.tensor.assign(tensor.begin(), tensor.end());
}

// Throws: ConfigError where the layers do not have the layout's size.
void require_size(const std::string& text, const choose::Layout& layout,
                  const memory::LayersFile& layers, bool makes_any) {
  std::set<std::int64_t> microbatches, tensor, context;
  bool has_selective = false;
  for (const memory::MeasuredSize& size : layers.sizes) {
    microbatches.insert(size.microbatch);
    tensor.insert(size.sharers);
    context.insert(size.context);
    has_selective |= size.is_selective;
  }
  const auto refuse = [&](const std::string& what, const std::string& note) {
    throw ConfigError(str("plan: --only ", in_quotes(text), ": ", what), {note});
  };
  if (!tensor.contains(layout.tensor())) {
    refuse(str("tensor=", layout.tensor(), ": layers are not shared by so many ranks"),
           str("those found are for tensor ",
               join(std::vector<std::int64_t>(tensor.begin(), tensor.end()), ", "),
               "; a size divides the heads"));
  }
  if (!makes_any && !context.contains(layout.context())) {
    refuse(str("context=", layout.context(), ": the layers have not this size"),
           str("sizes: ", join(std::vector<std::int64_t>(context.begin(), context.end()), ", ")));
  }
  if (!microbatches.contains(layout.microbatch)) {
    refuse(str("microbatch=", layout.microbatch, ": the layers have not this size"),
           str("sizes: ",
               join(std::vector<std::int64_t>(microbatches.begin(), microbatches.end()), ", ")));
  }
  if (layout.is_selective && !has_selective) {
    refuse("recompute=selective: blocks of this model have no such form", "none, or full");
  }
}

// The same layout when all tokens go to one rank's experts.
std::optional<choose::Priced::Worst> worst_of(const Request& request, const ShapedLayers& shaped,
                                              const choose::Layout& layout,
                                              const choose::Candidate& candidate) {
  const double load = shapes::worst_load(shaped.shape(), layout.experts);
  if (load <= 1.0) return std::nullopt;
  const memory::LayersFile none{.made_for = request.layers.made_for,
                                .model = request.layers.model,
                                .sample_bytes = request.layers.sample_bytes,
                                .is_fused = request.layers.is_fused};
  Request worst{.config = request.config, .layers = none};
  worst.make_size = [&](const choose::Layout& of) { return shaped.size_of(of, load); };
  worst.network = request.network;
  worst.times_of = request.times_of;
  worst.memory_bandwidth = request.memory_bandwidth;
  worst.kernels = request.kernels;
  worst.file_bandwidth = request.file_bandwidth;
  return choose::Priced::Worst{.load = load,
                               .bytes = choose::price(worst, candidate).candidate.peak()};
}

std::vector<choose::Priced> priced_of(const PlanCommand& command,
                                      const std::optional<ShapedLayers>& shaped, Request& request) {
  const choose::Frame frame =
      frame_of(command, request.config, static_cast<std::int64_t>(request.layers.model.size()));
  std::vector<choose::Priced> priced;
  for (const std::string& text : command.only) {
    const choose::AskedLayout asked = choose::asked_layout(text, frame);
    require_size(text, asked.layout, request.layers, shaped.has_value());
    if (asked.layout.offload != choose::Offload::Nothing && command.offload.empty()) {
      throw ConfigError(str("plan: --only ", in_quotes(text), ": how fast are its files?"),
                        {"--offload DIR=SPEED says it"});
    }
    priced.push_back(choose::price(request, asked));
    const std::int64_t world = priced.back().candidate.layout.mesh.size();
    request.choices.world = static_cast<std::int32_t>(world);
  }
  if (command.against) {
    request.top = std::max(request.top, static_cast<std::int32_t>(*command.against));
    const Plans plans = plans_of(request);
    if (*command.against > plans.candidates.size()) {
      throw ConfigError(str("plan: --against ", *command.against, ": there are ",
                            plans.candidates.size(), " candidates"));
    }
    priced.push_back(choose::price(request, plans.candidates[*command.against - 1]));
  }
  for (choose::Priced& each : priced) {
    if (!shaped) break;
    each.worst = worst_of(request, *shaped, each.candidate.layout, each.candidate);
  }
  return priced;
}

// Throws: ConfigError for options that do not go together.
void check_options(const PlanCommand& command) {
  if (command.only.empty()) {
    if (command.world == 0) throw ConfigError("plan: --world is required: how many ranks");
    if (command.against) throw ConfigError("plan: --against compares a layout of --only");
  } else {
    if (command.explain) throw ConfigError("plan: --explain is of candidates, not of --only");
    if (command.only.size() + (command.against ? 1U : 0U) > 2) {
      throw ConfigError("plan: two layouts are compared at most",
                        {"--only twice, or --only and --against"});
    }
    if (command.format != "text" && command.format != "json") {
      throw ConfigError(str("plan: --only is text or json, not ", command.format));
    }
  }
  if (command.explain && command.format != "text") {
    throw ConfigError(str("plan: --explain is text: leave --format ", command.format, " out"));
  }
}

// Throws: ConfigError for a layout that no run can have.
void write_configuration(const PlanCommand& command, const Request& request,
                         const choose::Candidate& candidate) {
  if (command.write.empty()) return;
  if (const auto names = not_yet(request, candidate.layout); !names.empty()) {
    throw ConfigError(
        str("plan: --write ", command.write, ": no run can have this yet: ", join(names, ", ")),
        {"leave --all-axes, --context, --expert and --shard out for layouts that "
         "penstock train takes"});
  }
  write_output(config::to_text(choose::configuration_of(request, candidate)), command.write);
}

int run_plan(const PlanCommand& given) {
  check_options(given);
  PlanCommand command = given;
  const config::ReadConfig read =
      config::read_config(command.inputs.config, command.inputs.overrides);
  const auto shape = shape_with_experts(read.config);
  if (shape) command.experts = shape->experts.count;
  if (!command.only.empty()) add_sizes(command, read.config, command.inputs);
  if (!command.inputs.costs.empty()) {
    config::require_whole_layers(read.config, "plan --costs", "costs are those of whole layers",
                                 {"leave --costs out: --flops and --bandwidth, or --device, give "
                                  "times by shape, also of layers that ranks share",
                                  "with --set mesh.tensor=1 each rank has whole layers"});
  }
  check_plan_inputs(command.inputs);
  const std::int64_t memory_max = memory_limit(command);
  files_of(command.offload);
  ProgressLines lines(std::chrono::milliseconds(800));
  lines.at("plan: layers of the model");
  const Layers all_layers = layers_of(command.inputs, read.config);
  const memory::LayersFile& layers = all_layers.file;
  const Times times = times_of(command.inputs, read.config, layers);
  const Links links = links_of(command.inputs, times);
  const Files files = files_of(command.offload);
  Request request{.config = read.config,
                  .layers = layers,
                  .family = all_layers.shaped ? shape->family : "",
                  .choices = choices_of(command, read.config, layers, links.network.ranks_per_node),
                  .memory_max = memory_max,
                  .network = links.network,
                  .times_of = times.of,
                  .memory_bandwidth = times.memory_bandwidth,
                  .kernels = times.kernels,
                  .file_bandwidth = files.bandwidth,
                  .file_folder = files.folder,
                  .top = command.top,
                  .at = [&lines](const std::string& what) { lines.at("plan: " + what); }};
  if (const auto& shaped = all_layers.shaped) {
    request.make_size = [&shaped](const choose::Layout& layout) { return shaped->size_of(layout); };
  }
  const PlanQuestion question{.config = command.inputs.config,
                              .costs = times.origin,
                              .memory = layers_text(command.inputs, all_layers),
                              .links = links.text,
                              .request = request};
  if (!command.only.empty()) {
    const std::vector<choose::Priced> priced = priced_of(command, all_layers.shaped, request);
    write_configuration(command, request, priced.front().candidate);
    write_output(
        command.format == "json" ? priced_json(question, priced) : priced_text(question, priced),
        command.output);
    return static_cast<int>(ExitCode::Ok);
  }
  const Plans plans = plans_of(request);
  const std::size_t chosen = command.explain.value_or(1);
  if (chosen < 1 || chosen > plans.candidates.size()) {
    throw ConfigError(str("plan: --explain ", chosen, ": there are ", plans.candidates.size(),
                          " candidates; --top gives more, where there are more"));
  }
  write_configuration(command, request, plans.candidates[chosen - 1]);
  write_output(formatted(command, question, plans), command.output);
  return static_cast<int>(ExitCode::Ok);
}

void declare_question(CLI::App& app, PlanCommand& command) {
  app.add_option("config", command.inputs.config, "JSON file of the run; see examples/gpt.json")
      ->required()
      ->type_name("CONFIG");
  app.add_option("--world", command.world,
                 "ranks, of all axes (default: those of --only, else required)")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--memory", command.memory,
                 "what a rank may take, such as 80GB (default: what --device has)")
      ->type_name("BYTES");
  declare_set(app, command.inputs.overrides, "train_batch_size=2048");
  app.add_option("--zero", command.zero, "stages of ZeRO to try (default: 0,1,2,3)")
      ->type_name("N,N")
      ->delimiter(',')
      ->check(CLI::Range(0, 3));
  app.add_flag("!--no-recompute", command.recompute, "keep all activations");
  app.add_option("--offload", command.offload,
                 "try layouts, too, that keep optimizer states, and with ZeRO 3 parameters, in\n"
                 "files in DIR, which a rank reads and writes at SPEED: /scratch=3GB/s")
      ->type_name("DIR=SPEED");
}

void declare_results(CLI::App& app, PlanCommand& command) {
  app.add_option("--top", command.top, "candidates to find")
      ->type_name("K")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option(
         "--only", command.only,
         "price this layout, and tell where each rank's time and bytes go:\n"
         "pipe=8,tensor=8,data=2,zero=1,schedule=1f1b,microbatch=1,recompute=selective;\n"
         "context, expert, shard, stages_per_rank, offload, stages=even, too; a second one\n"
         "is compared")
      ->type_name("LAYOUT");
  app.add_option("--against", command.against, "compare the layout of --only with candidate K")
      ->type_name("K")
      ->check(CLI::Range(1, 1000));
  app.add_option("--explain", command.explain, "say why candidate K is slower than the first one")
      ->type_name("K");
  app.add_option("--write", command.write,
                 "write the configuration of the first candidate, or of that of --explain, to FILE")
      ->type_name("FILE");
  app.add_option("--format", command.format, "text, csv, json, svg or html")
      ->type_name("FORM")
      ->check(CLI::IsMember({"text", "csv", "json", "svg", "html"}))
      ->capture_default_str();
  app.add_option("-o,--output", command.output, "write the result to FILE")->type_name("FILE");
}

}  // namespace

Command declare_plan_command(CLI::App& app) {
  const auto command = std::make_shared<PlanCommand>();
  declare_question(app, *command);
  declare_plan_inputs(app, command->inputs);
  declare_axes(app, command->inputs.axes);
  declare_results(app, *command);
  app.footer(
      "Every layout is considered; those that may be among the first are simulated.\n"
      "Exit codes: 0 found, 1 no layout fits (the message says what would), 2 bad input.\n"
      "Examples:\n"
      "  penstock plan llama.json --world 64 --device h100-sxm\n"
      "  penstock plan llama.json --device h100-sxm --only pipe=4,tensor=8,data=2,zero=1\n"
      "  penstock plan gpt.json --world 64 --memory 80GB --flops 150e12 --bandwidth 2e12 \\\n"
      "    --link intra=300GB/s:5us,inter=25GB/s:10us --ranks-per-node 8\n"
      "  penstock plan gpt.json --world 4 --memory 8GB --costs measured.json --explain 2\n"
      "  penstock plan gpt.json --world 4 --memory 8GB --costs measured.json --write best.json");
  return [command] { return run_plan(*command); };
}

}  // namespace penstock::cli
