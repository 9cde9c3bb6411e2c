#include "penstock/cli/plan/plan_axes.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <set>
#include <utility>

#include "penstock/cli/plan/plan_parts.h"
#include "penstock/cli/text_table.h"
#include "penstock/core/byte_size.h"
#include "penstock/core/error.h"
#include "penstock/core/read_file.h"
#include "penstock/core/text.h"
#include "penstock/plan/memory/token_shares.h"
#include "penstock/plan/render/number.h"

namespace penstock::cli {
namespace {

// Numbers to try where nobody names any.
const std::vector<std::int32_t> kContexts = {1, 2, 4, 8, 16};
const std::vector<std::int32_t> kExperts = {1, 2, 4, 8, 16, 32, 64};

std::int32_t shards_of(const std::string& word) {
  const auto number = parse_integer(word);
  if (number && *number >= 2 && *number <= 1 << 20) return static_cast<std::int32_t>(*number);
  throw ConfigError(str("plan: --shard ", in_quotes(word), ": expected all, node, or a number of ",
                        "ranks from 2 on"));
}

// What a rank waits for along these axes, by name.
std::array<std::pair<const char*, choose::AxisWait>, 2> waits_of(const choose::RankTime& rank) {
  return {{{"context", rank.context}, {"experts", rank.experts}}};
}

}  // namespace

std::vector<std::int32_t> PlanAxes::contexts() const {
  if (!context.empty()) return context;
  return all ? kContexts : std::vector<std::int32_t>{1};
}

void declare_axes(CLI::App& app, PlanAxes& axes) {
  const char* const group = "Axes that no run can have yet";
  app.add_option("--context", axes.context,
                 "numbers of ranks that share the tokens of each sample to try (default: 1)")
      ->type_name("N,N")
      ->delimiter(',')
      ->group(group)
      ->check(CLI::Range(1, 1 << 10));
  app.add_option("--context-by", axes.context_by,
                 "how keys and values reach the ranks that share tokens: gather or ring")
      ->type_name("WAY")
      ->group(group)
      ->capture_default_str()
      ->check(CLI::IsMember({"gather", "ring"}));
  app.add_option("--expert", axes.expert,
                 "numbers of ranks that share the experts of a layer to try (default: 1 to 64)")
      ->type_name("N,N")
      ->delimiter(',')
      ->group(group)
      ->check(CLI::Range(1, 1 << 12));
  app.add_option("--expert-by", axes.expert_by,
                 "how tokens reach their experts: all-to-all, once for each expert, or node, once\n"
                 "for each node of their experts")
      ->type_name("WAY")
      ->group(group)
      ->capture_default_str()
      ->check(CLI::IsMember({"all-to-all", "node"}));
  app.add_option("--expert-load", axes.expert_load,
                 "how many times as many tokens as on the average the fullest rank's experts get;\n"
                 "a capacity factor is one, too")
      ->type_name("X")
      ->group(group)
      ->capture_default_str()
      ->check(CLI::Range(1.0, 4096.0));
  app.add_option("--shard", axes.shard,
                 "ranks among which ZeRO cuts to try, copies of which have the others: all, node\n"
                 "(those of a node) or numbers (default: all)")
      ->type_name("N,N")
      ->delimiter(',')
      ->group(group);
  app.add_flag("--all-axes", axes.all,
               "try these, too: context 1 to 16, ZeRO within a node; a run cannot have them yet")
      ->group(group);
}

std::optional<shapes::DecoderShape> shape_with_experts(const config::Config& config) {
  if (config.model.type != config::ModelType::HuggingFace) return std::nullopt;
  const std::string path = (std::filesystem::path(config.model.path) / "config.json").string();
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;  // Others tell of it.
  const json::Value json = json::parse(std::make_shared<json::Source>(
      json::Source{.name = path, .text = read_file("the model's", path, json::kBytesMax)}));
  if (!shapes::is_with_experts(json)) return std::nullopt;
  return shapes::read_shape(json);
}

ShapedLayers::ShapedLayers(const config::Config& config, shapes::DecoderShape shape,
                           const PlanAxes& axes)
    : shape_(std::move(shape)),
      cut_{.sequence = config.model.sequence_length,
           .context_way = memory::context_way(axes.context_by),
           .expert_way = axes.expert_by == "node" ? memory::ExchangeWay::ByNode
                                                  : memory::ExchangeWay::AllToAll,
           .element_bytes = choose::element_bytes(config)},
      load_(axes.expert_load),
      made_for_(memory::made_for(config)) {
  const auto& sums = config.data_types.grad_accum_dtype;
  const bool in_float = sums && *sums == config::DataType::Fp32;
  cut_.sum_element_bytes = in_float ? 4 : cut_.element_bytes;
}

memory::MeasuredSize ShapedLayers::size_of(const choose::Layout& layout, double load) const {
  shapes::Cut cut = cut_;
  cut.microbatch = layout.microbatch;
  cut.tensor = layout.tensor();
  cut.context = layout.context();
  cut.experts = layout.experts;
  cut.is_selective = layout.is_selective;
  cut.load = load;
  return shapes::layers_of(shape_, cut);
}

memory::LayersFile ShapedLayers::file(const std::vector<std::int64_t>& microbatches,
                                      const std::vector<std::int32_t>& tensor) const {
  constexpr std::int64_t kIdBytes = 8;  // Bytes of a token, in an input and in a target.
  memory::LayersFile file{.made_for = made_for_,
                          .model = shapes::meta_of(shape_),
                          .sample_bytes = 2 * kIdBytes * cut_.sequence,
                          .is_fused = true};
  for (const std::int32_t sharers : std::set<std::int32_t>(tensor.begin(), tensor.end())) {
    if (!shapes::can_share_weights(shape_, sharers)) continue;
    for (const std::int64_t microbatch :
         std::set<std::int64_t>(microbatches.begin(), microbatches.end())) {
      for (const bool is_selective : {false, true}) {
        choose::Layout layout{.microbatch = microbatch, .is_selective = is_selective};
        layout.mesh = layout.mesh.with(mesh::Axis::Tensor, sharers);
        file.sizes.push_back(size_of(layout));
      }
    }
  }
  if (file.sizes.empty()) {
    throw ConfigError(str("plan: --tensor ", join(tensor, ", "), ": none divides the heads and ",
                          "widths of this ", shape_.family));
  }
  return file;
}

void add_axes(const PlanAxes& axes, const config::Config& config, std::int64_t experts,
              choose::Choices& choices) {
  const std::int64_t tokens = config.model.sequence_length;
  choices.context.clear();
  for (const std::int32_t ranks : axes.contexts()) {
    if (!memory::can_share_tokens(tokens, ranks)) {
      if (axes.context.empty()) continue;
      throw ConfigError(str("plan: --context ", ranks, ": each rank has two of ", 2 * ranks,
                            " chunks of a sample, which has ", tokens, " tokens"));
    }
    choices.context.push_back(ranks);
  }
  if (experts == 0 && !axes.expert.empty()) {
    throw ConfigError(
        "plan: --expert: layers of this model have no experts",
        {str("families with experts: ", join(shapes::families_with_experts(), ", "))});
  }
  choices.experts = {1};
  if (experts > 0) {
    choices.experts.clear();
    for (const std::int32_t ranks : axes.expert.empty() ? kExperts : axes.expert) {
      if (experts % ranks == 0) {
        choices.experts.push_back(ranks);
      } else if (!axes.expert.empty()) {
        throw ConfigError(
            str("plan: --expert ", ranks, ": has to divide the ", experts, " experts of a layer"));
      }
    }
  }
  choices.shards_within_nodes = axes.all && axes.shard.empty();
  if (axes.shard.empty()) return;
  choices.shards.clear();
  for (const std::string& word : axes.shard) {
    if (word == "node") {
      choices.shards_within_nodes = true;
    } else {
      choices.shards.push_back(word == "all" ? 0 : shards_of(word));
    }
  }
}

std::vector<std::string> not_yet(const choose::Request& request, const choose::Layout& layout) {
  std::vector<std::string> names = choose::only_planned(layout);
  if (!request.family.empty()) names.insert(names.begin(), request.family);
  return names;
}

std::string axes_json(const choose::RankTime& rank) {
  std::vector<std::string> axes;
  for (const auto& [name, wait] : waits_of(rank)) {
    axes.push_back(str(json_quote(name), ": {\"waited\": ", shortest(wait.waited), ", \"hidden\": ",
                       shortest(wait.hidden), ", \"bytes\": ", shortest(wait.bytes), "}"));
  }
  return str("{", join(axes, ", "), "}");
}

std::string worst_json(const choose::Priced& priced) {
  if (!priced.worst) return "";
  return str(", \"worst\": {\"load\": ", shortest(priced.worst->load),
             ", \"peak\": ", priced.worst->bytes, "}");
}

std::string axes_text(const choose::Priced& priced) {
  std::vector<TextRow> rows = {{"exchanges", "sends MiB", "waited ms", "hidden ms"}};
  const choose::RankTime& rank = busiest(priced);
  for (const auto& [name, wait] : waits_of(rank)) {
    if (wait.bytes == 0.0) continue;
    rows.push_back({name, render::fixed(wait.bytes / (1 << 20), 1),
                    render::rounded(wait.waited * 1000.0, 3),
                    render::rounded(wait.hidden * 1000.0, 3)});
  }
  return rows.size() == 1 ? "" : str(text_table(rows), "\n");
}

std::string worst_text(const choose::Priced& priced) {
  if (!priced.worst) return "";
  return str("experts: if all tokens go to one rank's, it gets ",
             render::significant(priced.worst->load),
             " times as many as on the average, and the peak is ",
             mebibytes(static_cast<std::uint64_t>(priced.worst->bytes)), "\n");
}

}  // namespace penstock::cli
