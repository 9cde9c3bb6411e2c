#include "penstock/plan/memory/layers_file.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::memory {
namespace {

using json::Value;

constexpr std::int64_t kVersion = 5;

struct NumberOf {
  const char* key;
  std::int64_t LayerMemory::* number;
};
constexpr std::array<NumberOf, 13> kNumbers = {
    {{"expert_parameters", &LayerMemory::expert_parameters},
     {"buffers", &LayerMemory::buffers},
     {"output", &LayerMemory::output},
     {"input_gradient", &LayerMemory::input_gradient},
     {"kept", &LayerMemory::kept},
     {"half_kept", &LayerMemory::half_kept},
     {"forward_peak", &LayerMemory::forward_peak},
     {"plain_forward_peak", &LayerMemory::plain_forward_peak},
     {"input_peak", &LayerMemory::input_peak},
     {"forward_sent", &LayerMemory::forward_sent},
     {"forward_exchanges", &LayerMemory::forward_exchanges},
     {"backward_sent", &LayerMemory::backward_sent},
     {"backward_exchanges", &LayerMemory::backward_exchanges}}};

struct FlagOf {
  const char* key;
  bool LayerMemory::* flag;
};
constexpr std::array<FlagOf, 4> kFlags = {
    {{"keeps_input", &LayerMemory::keeps_input},
     {"keeps_output", &LayerMemory::keeps_output},
     {"half_keeps_input", &LayerMemory::half_keeps_input},
     {"half_keeps_gradient", &LayerMemory::half_keeps_gradient}}};

struct PeakOf {
  const char* key;
  PassPeak LayerMemory::* peak;
};
constexpr std::array<PeakOf, 2> kPeaks = {
    {{"backward_peak", &LayerMemory::backward_peak}, {"weight_peak", &LayerMemory::weight_peak}}};

struct KernelsOf {
  const char* key;
  devices::Kernels LayerMemory::* kernels;
};
constexpr std::array<KernelsOf, 4> kPasses = {{{"forward_kernels", &LayerMemory::forward_kernels},
                                               {"backward_kernels", &LayerMemory::backward_kernels},
                                               {"input_kernels", &LayerMemory::input_kernels},
                                               {"weight_kernels", &LayerMemory::weight_kernels}}};

struct PassOf {
  const char* key;
  devices::Pass LayerMemory::* pass;
};
constexpr std::array<PassOf, 3> kExchanging = {{{"forward_pass", &LayerMemory::forward_pass},
                                                {"backward_pass", &LayerMemory::backward_pass},
                                                {"input_pass", &LayerMemory::input_pass}}};

// Names of kinds of kernels, in their order.
constexpr std::array<std::string_view, 7> kKinds = {"product",
                                                    "short_product",
                                                    "attention",
                                                    "short_attention",
                                                    "attention_backward",
                                                    "short_attention_backward",
                                                    "other"};

// Names of groups and of ways, in their orders.
constexpr std::array<std::string_view, 2> kGroups = {"context", "experts"};
constexpr std::array<std::string_view, 4> kWays = {"gather", "ring", "all_to_all", "by_node"};

std::string_view text(bool flag) { return flag ? "true" : "false"; }

std::string to_json(const Parameter& each) {
  return str("{\"name\": ", json_quote(each.name), ", \"type\": ", json_quote(each.type),
             ", \"element_bytes\": ", each.element_bytes, ", \"elements\": ", each.elements,
             ", \"trainable\": ", text(each.is_trainable), ", \"tied\": ", text(each.is_tied),
             ", \"copies\": ", each.copies, ", \"sum_element_bytes\": ", each.sum_element_bytes,
             "}");
}

// [kind, operations or bytes, how often] of each.
std::string to_json(const devices::Kernels& kernels) {
  std::vector<std::string> all;
  for (const auto& [kernel, count] : kernels) {
    all.push_back(str("[\"", kKinds[static_cast<std::size_t>(kernel.kind)], "\", ", kernel.amount,
                      ", ", count, "]"));
  }
  return str("[", join(all, ", "), "]");
}

// ["kernels", ...], ["begin", bytes] and ["await", number of the begin], in their order.
std::string to_json(const devices::Pass& pass) {
  using Kind = devices::PassStep::Kind;
  std::vector<std::string> steps;
  for (const devices::PassStep& step : pass) {
    steps.push_back(step.kind == Kind::Launch  ? str("[\"kernels\", ", to_json(step.kernels), "]")
                    : step.kind == Kind::Begin ? str("[\"begin\", ", step.bytes, "]")
                                               : str("[\"await\", ", step.number, "]"));
  }
  return str("[", join(steps, ", "), "]");
}

// [group, way, copies, bytes and number forward, bytes and number backward].
std::string to_json(const LayerExchange& each) {
  return str("[\"", kGroups[static_cast<std::size_t>(each.group)], "\", \"",
             kWays[static_cast<std::size_t>(each.way)], "\", ", each.copies, ", ",
             each.forward_bytes, ", ", each.forward_count, ", ", each.backward_bytes, ", ",
             each.backward_count, "]");
}

std::string to_json(const LayerMemory& layer) {
  std::vector<std::string> members;
  for (const NumberOf& each : kNumbers) {
    members.push_back(str("\"", each.key, "\": ", layer.*each.number));
  }
  for (const FlagOf& each : kFlags) {
    members.push_back(str("\"", each.key, "\": ", text(layer.*each.flag)));
  }
  for (const PeakOf& each : kPeaks) {
    const PassPeak& peak = layer.*each.peak;
    members.push_back(str("\"", each.key, "\": [", peak.first, ", ", peak.later, "]"));
  }
  for (const KernelsOf& each : kPasses) {
    members.push_back(str("\"", each.key, "\": ", to_json(layer.*each.kernels)));
  }
  for (const PassOf& each : kExchanging) {
    members.push_back(str("\"", each.key, "\": ", to_json(layer.*each.pass)));
  }
  std::vector<std::string> exchanges;
  for (const LayerExchange& each : layer.exchanges) exchanges.push_back(to_json(each));
  members.push_back(str("\"exchanges\": [", join(exchanges, ", "), "]"));
  std::vector<std::string> parameters;
  for (const Parameter& each : layer.parameters) parameters.push_back(to_json(each));
  members.push_back(str("\"parameters\": [", join(parameters, ", "), "]"));
  return str("{", join(members, ", "), "}");
}

// Renames the parameters of a layer for another layer of its kind; nothing where one has a name
// that does not begin with the layer's.
std::optional<LayerMemory> renamed(LayerMemory layer, const std::string& from,
                                   const std::string& to) {
  for (Parameter& each : layer.parameters) {
    if (!each.name.starts_with(from + ".")) return std::nullopt;
    each.name = to + each.name.substr(from.size());
  }
  return layer;
}

// A layer that is like one before it, but for its name, is the number of that: large models have a
// hundred alike, in each of a hundred sizes.
std::string to_json(const std::vector<LayerMemory>& layers, const partition::ModelMeta& model) {
  std::vector<std::string> texts;
  std::vector<std::size_t> whole;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto like = std::ranges::find_if(whole, [&](std::size_t before) {
      const auto named = renamed(layers[before], model[before].name, model[i].name);
      return named && *named == layers[i];
    });
    if (like == whole.end()) {
      whole.push_back(i);
      texts.push_back(to_json(layers[i]));
    } else {
      texts.push_back(str(*like));
    }
  }
  return str("[\n   ", join(texts, ",\n   "), "]");
}

std::string to_json(const MeasuredSize& size, const partition::ModelMeta& model) {
  return str("{\"microbatch\": ", size.microbatch, ", \"sharers\": ", size.sharers,
             ", \"context\": ", size.context, ", \"experts\": ", size.experts,
             ", \"selective\": ", text(size.is_selective),
             ",\n  \"loss\": ", to_json(size.memory.loss),
             ",\n  \"layers\": ", to_json(size.memory.layers, model),
             ",\n  \"again\": ", to_json(size.memory.again, model), "}");
}

[[noreturn]] void refuse(const Value& value, const std::string& what) {
  throw ParseError(str(to_string(json::origin_of(value)), ": ", what));
}

// The members of an object, by their keys.
class Reader {
 public:
  explicit Reader(const Value& value) : value_(value) {
    object_ = std::get_if<Value::Object>(&value.data);
    if (object_ == nullptr) refuse(value, "expected an object, found " + json::found(value));
  }

  const Value& at(const char* key) const {
    const json::Member* member = json::find(*object_, key);
    if (member == nullptr) {
      refuse(value_, str("no key \"", key, "\": it is no file of `penstock memory --layers`"));
    }
    return member->value;
  }
  std::int64_t number(const char* key) const { return number_of(at(key), key); }
  bool flag(const char* key) const { return as<bool>(key, "true or false"); }
  const std::string& text(const char* key) const { return as<std::string>(key, "a text"); }
  const Value::Array& list(const char* key) const { return as<Value::Array>(key, "a list"); }

  // Sums of numbers up to 2^50 are no overflow.
  static std::int64_t number_of(const Value& value, const char* key, int most = 50) {
    const auto* number = std::get_if<std::int64_t>(&value.data);
    if (number == nullptr || *number < 0 || *number > std::int64_t{1} << most) {
      refuse(value, str(key, ": expected a whole number from 0 to 2^", most, ", found ",
                        json::found(value)));
    }
    return *number;
  }

 private:
  template <class Type>
  const Type& as(const char* key, const char* kind) const {
    const Value& value = at(key);
    const auto* found = std::get_if<Type>(&value.data);
    if (found == nullptr) {
      refuse(value, str(key, ": expected ", kind, ", found ", json::found(value)));
    }
    return *found;
  }

  const Value& value_;
  const Value::Object* object_ = nullptr;
};

Parameter read_parameter(const Value& value) {
  const Reader reader(value);
  return {.name = reader.text("name"),
          .type = reader.text("type"),
          .element_bytes = reader.number("element_bytes"),
          .elements = reader.number("elements"),
          .is_trainable = reader.flag("trainable"),
          .is_tied = reader.flag("tied"),
          .copies = reader.number("copies"),
          .sum_element_bytes = reader.number("sum_element_bytes")};
}

PassPeak read_peak(const Reader& reader, const char* key) {
  const Value::Array& list = reader.list(key);
  if (list.size() != 2) refuse(reader.at(key), str(key, ": expected two numbers"));
  return {.first = Reader::number_of(list[0], key), .later = Reader::number_of(list[1], key)};
}

devices::Kernels read_kernels(const Value::Array& list, const char* key) {
  constexpr int kMostOperations = 62;  // They are added up in floating point.
  devices::Kernels kernels;
  for (const Value& each : list) {
    const auto* const parts = std::get_if<Value::Array>(&each.data);
    const auto* const name = parts != nullptr && parts->size() == 3
                                 ? std::get_if<std::string>(&parts->front().data)
                                 : nullptr;
    const auto* const kind = name != nullptr ? std::ranges::find(kKinds, *name) : kKinds.end();
    if (kind == kKinds.end()) {
      refuse(each, str(key, ": expected a kind (", join(kKinds, ", "), ") and two numbers"));
    }
    kernels[{.kind = static_cast<devices::KernelKind>(kind - kKinds.begin()),
             .amount = Reader::number_of((*parts)[1], key, kMostOperations)}] +=
        Reader::number_of((*parts)[2], key);
  }
  return kernels;
}

devices::Pass read_pass(const Reader& reader, const char* key) {
  using Kind = devices::PassStep::Kind;
  devices::Pass pass;
  std::int64_t begun = 0;
  for (const Value& each : reader.list(key)) {
    const auto* const parts = std::get_if<Value::Array>(&each.data);
    const auto* const name = parts != nullptr && parts->size() == 2
                                 ? std::get_if<std::string>(&parts->front().data)
                                 : nullptr;
    const std::string kind = name != nullptr ? *name : "";
    if (kind == "kernels") {
      const auto* const list = std::get_if<Value::Array>(&parts->back().data);
      if (list == nullptr) refuse(each, str(key, ": expected a list of kernels"));
      pass.push_back({.kernels = read_kernels(*list, key)});
    } else if (kind == "begin") {
      pass.push_back({.kind = Kind::Begin, .bytes = Reader::number_of(parts->back(), key)});
      ++begun;
    } else if (kind == "await" && Reader::number_of(parts->back(), key) < begun) {
      pass.push_back({.kind = Kind::Await, .number = Reader::number_of(parts->back(), key)});
    } else {
      refuse(each, str(key,
                       ": expected kernels, begin, or await of one that has begun, with a "
                       "list or a number"));
    }
  }
  return pass;
}

LayerExchange read_exchange(const Value& value) {
  const auto refuse_it = [&] {
    refuse(value, str("exchanges: expected a group (", join(kGroups, ", "), "), a way (",
                      join(kWays, ", "), ") and five numbers"));
  };
  const auto* const parts = std::get_if<Value::Array>(&value.data);
  if (parts == nullptr || parts->size() != 7) refuse_it();
  const auto place = [&](std::size_t i, const auto& names) {
    const auto* const name = std::get_if<std::string>(&(*parts)[i].data);
    const auto found = name == nullptr ? names.end() : std::ranges::find(names, *name);
    if (found == names.end()) refuse_it();
    return found - names.begin();
  };
  const auto number = [&](std::size_t i) { return Reader::number_of((*parts)[i], "exchanges"); };
  return {.group = static_cast<LayerGroup>(place(0, kGroups)),
          .way = static_cast<ExchangeWay>(place(1, kWays)),
          .copies = std::max<std::int64_t>(number(2), 1),
          .forward_bytes = number(3),
          .forward_count = number(4),
          .backward_bytes = number(5),
          .backward_count = number(6)};
}

LayerMemory read_layer(const Value& value) {
  const Reader reader(value);
  LayerMemory layer;
  for (const NumberOf& each : kNumbers) layer.*each.number = reader.number(each.key);
  for (const FlagOf& each : kFlags) layer.*each.flag = reader.flag(each.key);
  for (const PeakOf& each : kPeaks) layer.*each.peak = read_peak(reader, each.key);
  for (const KernelsOf& each : kPasses) {
    layer.*each.kernels = read_kernels(reader.list(each.key), each.key);
  }
  for (const PassOf& each : kExchanging) layer.*each.pass = read_pass(reader, each.key);
  for (const Value& each : reader.list("parameters")) {
    layer.parameters.push_back(read_parameter(each));
  }
  for (const Value& each : reader.list("exchanges")) {
    layer.exchanges.push_back(read_exchange(each));
  }
  if (layer.expert_parameters > std::ssize(layer.parameters)) {
    refuse(reader.at("expert_parameters"), str("expert_parameters: expected at most the ",
                                               layer.parameters.size(), " that the layer has"));
  }
  return layer;
}

// A layer, or the number of one before it that it is like.
std::vector<LayerMemory> read_list(const Reader& reader, const char* key,
                                   const partition::ModelMeta& model) {
  const Value::Array& list = reader.list(key);
  if (!list.empty() && list.size() != model.size()) {
    refuse(reader.at(key), str(key, ": ", list.size(), " layers; the model has ", model.size()));
  }
  std::vector<LayerMemory> layers;
  for (const Value& each : list) {
    const auto* const like = std::get_if<std::int64_t>(&each.data);
    if (like == nullptr) {
      layers.push_back(read_layer(each));
      continue;
    }
    if (*like < 0 || *like >= std::ssize(layers)) {
      refuse(each, str(key, ": expected a layer, or the number of one before it, found ", *like));
    }
    const auto before = static_cast<std::size_t>(*like);
    auto named = renamed(layers[before], model[before].name, model[layers.size()].name);
    if (!named) refuse(each, str(key, ": layer ", *like, " has parameters of other names"));
    layers.push_back(std::move(*named));
  }
  return layers;
}

MeasuredSize read_size(const Value& value, const partition::ModelMeta& model) {
  const Reader reader(value);
  MeasuredSize size{.microbatch = reader.number("microbatch"),
                    .sharers = reader.number("sharers"),
                    .context = reader.number("context"),
                    .experts = reader.number("experts"),
                    .is_selective = reader.flag("selective")};
  for (const char* const key : {"microbatch", "sharers", "context", "experts"}) {
    if (reader.number(key) < 1) refuse(reader.at(key), str(key, ": expected 1 or more"));
  }
  size.memory.loss = read_layer(reader.at("loss"));
  size.memory.layers = read_list(reader, "layers", model);
  size.memory.again = read_list(reader, "again", model);
  if (size.memory.layers.empty()) refuse(reader.at("layers"), "layers: expected some");
  return size;
}

}  // namespace

std::string made_for(const config::Config& config) {
  const config::ModelConfig& model = config.model;
  const auto name = [](config::DataType type) {
    switch (type) {
      case config::DataType::Fp32:
        return "fp32";
      case config::DataType::Bf16:
        return "bf16";
      case config::DataType::Fp16:
        return "fp16";
    }
    return "";
  };
  const char* const type = config.bf16.enabled ? "bf16" : config.fp16.enabled ? "fp16" : "fp32";
  const auto& sums = config.data_types.grad_accum_dtype;
  const std::string of_model =
      model.type == config::ModelType::HuggingFace
          ? str("model.type=hugging_face path=", model.path)
          : str("model.type=", model.type == config::ModelType::Gpt ? "gpt" : "mlp",
                " layers=", model.layers, " hidden=", model.hidden, " heads=", model.heads,
                " vocabulary=", model.vocabulary, " tie_embeddings=", text(model.tie_embeddings),
                " dropout=", model.dropout > 0 ? "some" : "none");
  return str(of_model, " sequence_length=", model.sequence_length, " parameters=", type,
             " gradients=", sums ? name(*sums) : type);
}

std::string to_json(const LayersFile& file) {
  std::vector<std::string> model;
  for (const partition::LayerMeta& layer : file.model) {
    model.push_back(str("{\"name\": ", json_quote(layer.name), ", \"type\": ",
                        json_quote(layer.type), ", \"parameters\": ", layer.parameters, "}"));
  }
  std::vector<std::string> sizes;
  for (const MeasuredSize& size : file.sizes) sizes.push_back(to_json(size, file.model));
  return str("{\"version\": ", kVersion, ",\n \"made_for\": ", json_quote(file.made_for),
             ",\n \"sample_bytes\": ", file.sample_bytes,
             ",\n \"fused\": ", file.is_fused ? "true" : "false", ",\n \"model\": [\n  ",
             join(model, ",\n  "), "],\n \"sizes\": [\n  ", join(sizes, ",\n  "), "]}\n");
}

LayersFile read_layers(const Value& json) {
  const Reader reader(json);
  if (reader.number("version") != kVersion) {
    refuse(reader.at("version"),
           str("version ", json::found(reader.at("version")), ": this penstock reads version ",
               kVersion, "; write the file anew with `penstock memory --layers`"));
  }
  LayersFile file{.made_for = reader.text("made_for"),
                  .sample_bytes = reader.number("sample_bytes"),
                  .is_fused = reader.flag("fused")};
  for (const Value& each : reader.list("model")) {
    const Reader layer(each);
    file.model.push_back({.name = layer.text("name"),
                          .type = layer.text("type"),
                          .parameters = layer.number("parameters")});
  }
  for (const Value& each : reader.list("sizes")) {
    file.sizes.push_back(read_size(each, file.model));
    const MeasuredSize& size = file.sizes.back();
    const auto place = [](const MeasuredSize& of) {
      return std::tuple(of.sharers, of.context, of.experts, of.microbatch, of.is_selective);
    };
    const bool rises =
        file.sizes.size() == 1 || place(file.sizes[file.sizes.size() - 2]) < place(size);
    if (!rises)
      refuse(each, "sizes must rise, by sharers, context, experts, microbatches and selective");
  }
  if (file.sizes.empty()) refuse(reader.at("sizes"), "sizes: expected at least one");
  return file;
}

}  // namespace penstock::memory
