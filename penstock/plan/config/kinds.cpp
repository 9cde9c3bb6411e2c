#include "penstock/plan/config/kinds.h"

#include <algorithm>
#include <cmath>
#include <regex>

namespace penstock::config {
namespace {

constexpr std::array<Name<PartitionMethod>, 4> kPartitionNames = {{
    {PartitionMethod::Uniform, "uniform"},
    {PartitionMethod::Parameters, "parameters"},
    {PartitionMethod::LayerCost, "layer_cost"},
    {PartitionMethod::Bounds, "bounds"},
}};
constexpr Choice<PartitionMethod> kPartitionChoice{kPartitionNames};
constexpr std::string_view kTypePrefix = "type:";

std::string out_of_range(std::string_view value, const std::string& allowed) {
  return str(" = ", value, ": must be ", allowed);
}

// A whole number written as 1e3 or 4.0, as peers' files do, is an integer where it is exact.
std::optional<std::int64_t> exact_integer(double value) {
  constexpr double kExact = 9007199254740992.0;  // 2^53.
  if (std::trunc(value) != value || std::fabs(value) > kExact) return {};
  return static_cast<std::int64_t>(value);
}

// std::regex recurses on its pattern: a long one could end the process.
std::optional<std::string> check_pattern(std::string_view prefix, const std::string& pattern) {
  constexpr std::size_t kLongest = 256;
  if (pattern.size() > kLongest) {
    return str(": the pattern is longer than ", kLongest, " bytes");
  }
  try {
    std::regex compiled(pattern, std::regex::ECMAScript);
  } catch (const std::regex_error& error) {
    return str(" = ", in_quotes(str(prefix, pattern)),
               ": not a regular expression: ", error.what());
  }
  return {};
}

std::optional<std::string> check_type_pattern(const std::string& pattern) {
  if (pattern.empty()) return str(": expected a pattern after \"", kTypePrefix, "\"");
  return check_pattern(kTypePrefix, pattern);
}

}  // namespace

Complaint wrong_type(std::string_view noun, const json::Value& json) {
  return {str(": expected ", noun, ", found ", found(json)), &json};
}

Complaint wrong_choice(const json::Value& json, const std::vector<std::string>& names) {
  const std::string& text = std::get<std::string>(json.data);
  std::vector<std::string> listed;
  for (const std::string& name : names) listed.push_back(json_quote(name));
  return {str(" = ", in_quotes(text), ": expected ", either(listed), suggest(text, names)), &json};
}

std::string Integer::allowed() const {
  return high == kAny ? str("at least ", low) : str("in [", low, ", ", high, "]");
}

std::optional<Complaint> Integer::read(const json::Value& json, std::int64_t& value) const {
  if (const auto* integer = std::get_if<std::int64_t>(&json.data)) {
    value = *integer;
  } else if (const auto* number = std::get_if<double>(&json.data)) {
    const auto exact = exact_integer(*number);
    const bool whole = std::trunc(*number) == *number;
    if (!whole) return wrong_type(noun(), json);
    if (!exact) {
      const std::string limit = high == kAny ? "at most 9223372036854775807" : allowed();
      return Complaint{out_of_range(found(json), *number < 0 ? allowed() : limit), &json};
    }
    value = *exact;
  } else {
    return wrong_type(noun(), json);
  }
  if (const auto wrong = check(value)) return Complaint{*wrong, &json};
  return {};
}

std::optional<std::string> Integer::check(std::int64_t value) const {
  if (low <= value && value <= high) return {};
  return out_of_range(std::to_string(value), allowed());
}

std::optional<Complaint> Interval::read(const json::Value& json, std::int64_t& value) const {
  const auto* text = std::get_if<std::string>(&json.data);
  if (text != nullptr && *text == "Infinity") {
    value = high;
    return {};
  }
  if (text != nullptr) return wrong_type(noun(), json);
  return steps().read(json, value);
}

std::string Number::allowed() const {
  if (high == kAny) return str(without_low ? "greater than " : "at least ", shortest(low));
  return str("in ", without_low ? "(" : "[", shortest(low), ", ", shortest(high),
             without_high ? ")" : "]");
}

std::optional<Complaint> Number::read(const json::Value& json, double& value) const {
  if (const auto* number = std::get_if<double>(&json.data)) {
    value = *number;
  } else if (const auto* integer = std::get_if<std::int64_t>(&json.data)) {
    value = static_cast<double>(*integer);
  } else {
    return wrong_type(noun(), json);
  }
  if (const auto wrong = check(value)) return Complaint{*wrong, &json};
  return {};
}

std::optional<std::string> Number::check(double value) const {
  const bool above = without_low ? value > low : value >= low;
  const bool below = without_high ? value < high : value <= high;
  if (above && below && std::isfinite(value)) return {};
  return out_of_range(shortest(value), allowed());
}

std::optional<Complaint> Text::read(const json::Value& json, std::string& value) const {
  if (!may_be_empty && json.is_null()) {
    value.clear();
    return {};
  }
  if (const auto* text = std::get_if<std::string>(&json.data)) {
    value = *text;
  } else if (json.source->kind == json::SourceKind::Option) {
    value = std::string(text_of(json));
  } else {
    return wrong_type(noun(), json);
  }
  if (!may_be_empty && value.empty()) return wrong_type(noun(), json);
  if (const auto wrong = check(value)) return Complaint{*wrong, &json};
  return {};
}

std::optional<std::string> Text::check(const std::string& value) const {
  if (value.find('\0') == std::string::npos) return {};
  return ": holds a NUL character";
}

std::optional<Complaint> Flag::read(const json::Value& json, bool& value) const {
  const auto* flag = std::get_if<bool>(&json.data);
  if (flag == nullptr) return wrong_type(noun(), json);
  value = *flag;
  return {};
}

std::optional<Complaint> Pattern::read(const json::Value& json, std::string& value) const {
  const auto* text = std::get_if<std::string>(&json.data);
  if (text == nullptr) return wrong_type(noun(), json);
  value = *text;
  if (const auto wrong = check(value)) return Complaint{*wrong, &json};
  return {};
}

std::optional<std::string> Pattern::check(const std::string& value) const {
  if (value.empty()) return {};
  return check_pattern("", value);
}

std::string Partition::noun() const {
  return "\"uniform\", \"parameters\", \"type:REGEX\", \"layer_cost\" or \"bounds\"";
}

std::optional<Complaint> Partition::read(const json::Value& json, PipelineConfig& value) const {
  const auto* text = std::get_if<std::string>(&json.data);
  if (text == nullptr) return wrong_type(noun(), json);
  if (text->starts_with(kTypePrefix)) {
    value.partition = PartitionMethod::TypeRegex;
    value.type_regex = text->substr(kTypePrefix.size());
    const auto wrong = check_type_pattern(value.type_regex);
    return wrong ? std::optional(Complaint{*wrong, &json}) : std::nullopt;
  }
  if (!kPartitionChoice.read(json, value.partition)) return {};
  const std::string hint = suggest(*text, kPartitionChoice.list());
  return Complaint{str(" = ", in_quotes(*text), ": expected ", noun(), hint), &json};
}

std::optional<std::string> Partition::check(const PipelineConfig& value) const {
  if (value.partition == PartitionMethod::TypeRegex) return check_type_pattern(value.type_regex);
  return kPartitionChoice.check(value.partition);
}

std::string Partition::write(const PipelineConfig& value) const {
  if (value.partition != PartitionMethod::TypeRegex) return kPartitionChoice.write(value.partition);
  return json_quote(str(kTypePrefix, value.type_regex));
}

namespace {

constexpr Number kWeight{.low = 0, .without_low = true};
constexpr Text kSourcePath{.may_be_empty = false};

// Elements of a list, each by `read_one`.
template <class Element, class ReadOne>
std::optional<Complaint> read_objects(const json::Value& json, const std::string& noun,
                                      std::vector<Element>& values, const ReadOne& read_one) {
  const auto* elements = std::get_if<json::Value::Array>(&json.data);
  if (elements == nullptr) return wrong_type(noun, json);
  values.assign(elements->size(), {});
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (auto wrong = read_one((*elements)[i], values[i])) {
      wrong->text = str("[", i, "]", wrong->text);
      return wrong;
    }
  }
  return {};
}

Complaint unknown_member(const json::Member& member, const std::vector<std::string>& known) {
  return {str(": unknown key ", in_quotes(member.key), suggest(member.key, known)), &member.value};
}

constexpr Optional<Number> kOwnNumber{};
const Optional<List<Number>> kOwnBetas{{Number{.low = 0, .high = 1, .without_high = true}, 2}};

// The complaint about `key` of an element.
std::optional<Complaint> within(std::string_view key, std::optional<Complaint> wrong) {
  if (wrong) wrong->text = str(".", key, wrong->text);
  return wrong;
}

}  // namespace

std::optional<Complaint> Sources::read(const json::Value& json,
                                       std::vector<DataSource>& values) const {
  return read_objects(json, noun(), values, [this](const json::Value& each, DataSource& value) {
    return read_one(each, value);
  });
}

std::optional<Complaint> Sources::read_one(const json::Value& json, DataSource& value) const {
  const auto* object = std::get_if<json::Value::Object>(&json.data);
  if (object == nullptr) return wrong_type("an object", json);
  bool has_path = false;
  for (const json::Member& member : *object) {
    std::optional<Complaint> wrong;
    if (member.key == "path") {
      has_path = true;
      wrong = within(member.key, kSourcePath.read(member.value, value.path));
    } else if (member.key == "weight") {
      wrong = within(member.key, kWeight.read(member.value, value.weight));
    } else if (member.key == "format") {
      wrong = within(member.key, formats.read(member.value, value.format));
    } else {
      wrong = unknown_member(member, {"path", "weight", "format"});
    }
    if (wrong) return wrong;
  }
  if (!has_path) return Complaint{".path is missing", &json};
  return {};
}

std::optional<std::string> Sources::check(const std::vector<DataSource>& values) const {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i].path.empty()) return str("[", i, "].path is missing");
    if (const auto wrong = kSourcePath.check(values[i].path)) return str("[", i, "].path", *wrong);
    if (const auto wrong = kWeight.check(values[i].weight)) return str("[", i, "].weight", *wrong);
    if (const auto wrong = formats.check(values[i].format)) return str("[", i, "].format", *wrong);
  }
  return {};
}

std::string Sources::write(const std::vector<DataSource>& values) const {
  std::vector<std::string> parts;
  for (const DataSource& source : values) {
    parts.push_back(str("{\"path\": ", kSourcePath.write(source.path),
                        ", \"weight\": ", kWeight.write(source.weight),
                        ", \"format\": ", formats.write(source.format), "}"));
  }
  return "[" + join(parts, ", ") + "]";
}

std::optional<Complaint> ValidationSets::read(const json::Value& json,
                                              std::vector<ValidationSet>& values) const {
  values.clear();
  const auto* object = std::get_if<json::Value::Object>(&json.data);
  if (object == nullptr) {
    std::string path;
    if (Text{}.read(json, path)) return wrong_type(noun(), json);
    if (!path.empty()) values.push_back({.path = path});
    return {};
  }
  for (const json::Member& member : *object) {
    ValidationSet& value = values.emplace_back();
    value.name = member.key;
    if (auto wrong = within(member.key, kSourcePath.read(member.value, value.path))) return wrong;
  }
  if (const auto wrong = check(values)) return Complaint{*wrong, &json};
  return {};
}

std::optional<std::string> ValidationSets::check(const std::vector<ValidationSet>& values) const {
  for (const ValidationSet& each : values) {
    if (each.path.empty()) return str(".", each.name, " has no path");
    if (each.name.empty() && values.size() > 1) return ": each of several sets needs a name";
    const auto same = [&](const ValidationSet& other) { return other.name == each.name; };
    if (std::ranges::count_if(values, same) > 1)
      return str(": ", in_quotes(each.name), " is twice");
  }
  return {};
}

std::string ValidationSets::write(const std::vector<ValidationSet>& values) const {
  if (values.empty()) return json_quote("");
  if (values.size() == 1 && values[0].name.empty()) return json_quote(values[0].path);
  std::vector<std::string> parts;
  for (const ValidationSet& each : values) {
    parts.push_back(str(json_quote(each.name), ": ", json_quote(each.path)));
  }
  return "{" + join(parts, ", ") + "}";
}

std::optional<Complaint> NamedNumbers::read(const json::Value& json,
                                            std::vector<NamedNumber>& values) const {
  const auto* object = std::get_if<json::Value::Object>(&json.data);
  if (object == nullptr) return wrong_type(noun(), json);
  values.clear();
  for (const json::Member& member : *object) {
    NamedNumber& value = values.emplace_back();
    value.name = member.key;
    if (auto wrong = within(member.key, number.read(member.value, value.number))) return wrong;
  }
  if (const auto wrong = check(values)) return Complaint{*wrong, &json};
  return {};
}

std::optional<std::string> NamedNumbers::check(const std::vector<NamedNumber>& values) const {
  for (const NamedNumber& each : values) {
    if (each.name.empty()) return ": a name is empty";
    if (const auto wrong = check_pattern("", each.name)) return wrong;
    if (const auto wrong = number.check(each.number)) return str(".", each.name, *wrong);
    if (are_whole && each.number != std::floor(each.number)) {
      return str(".", each.name, " = ", shortest(each.number), ": must be an integer");
    }
  }
  return {};
}

std::string NamedNumbers::write(const std::vector<NamedNumber>& values) const {
  std::vector<std::string> parts;
  for (const NamedNumber& each : values) {
    parts.push_back(str(json_quote(each.name), ": ", shortest(each.number)));
  }
  return "{" + join(parts, ", ") + "}";
}

std::optional<Complaint> Names::read(const json::Value& json, std::string& value) const {
  const auto* elements = std::get_if<json::Value::Array>(&json.data);
  if (elements == nullptr) {
    return std::holds_alternative<std::string>(json.data) ? pattern.read(json, value)
                                                          : std::optional(wrong_type(noun(), json));
  }
  std::vector<std::string> names;
  for (std::size_t i = 0; i < elements->size(); ++i) {
    const json::Value& element = (*elements)[i];
    const auto* name = std::get_if<std::string>(&element.data);
    const auto is_of_word = [](unsigned char c) { return c == '_' || std::isalnum(c) != 0; };
    if (name == nullptr || name->empty() || !std::ranges::all_of(*name, is_of_word)) {
      return Complaint{
          str("[", i, "] = ", json::text_of(element), ": expected a name, such as ", "\"q_proj\""),
          &element};
    }
    names.push_back(*name);
  }
  value = join(names, "|");
  return {};
}

std::optional<Complaint> ParameterGroups::read(const json::Value& json,
                                               std::vector<ParameterGroup>& values) const {
  return read_objects(json, noun(), values, [this](const json::Value& each, ParameterGroup& value) {
    return read_one(each, value);
  });
}

std::optional<Complaint> ParameterGroups::read_one(const json::Value& json,
                                                   ParameterGroup& value) const {
  const auto* object = std::get_if<json::Value::Object>(&json.data);
  if (object == nullptr) return wrong_type("an object", json);
  for (const json::Member& member : *object) {
    std::optional<Complaint> wrong;
    if (member.key == "parameters") {
      wrong = Pattern{}.read(member.value, value.parameters);
    } else if (member.key == "lr") {
      wrong = kOwnNumber.read(member.value, value.lr);
    } else if (member.key == "weight_decay") {
      wrong = kOwnNumber.read(member.value, value.weight_decay);
    } else if (member.key == "betas") {
      wrong = kOwnBetas.read(member.value, value.betas);
    } else if (member.key == "eps") {
      wrong = kOwnNumber.read(member.value, value.eps);
    } else {
      return unknown_member(member, {"parameters", "lr", "weight_decay", "betas", "eps"});
    }
    if (wrong) return within(member.key, wrong);
  }
  if (value.parameters.empty()) return Complaint{".parameters is missing", &json};
  return {};
}

std::optional<std::string> ParameterGroups::check(const std::vector<ParameterGroup>& values) const {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const ParameterGroup& each = values[i];
    if (each.parameters.empty()) return str("[", i, "].parameters is missing");
    const auto at = [&](std::string_view key, const std::optional<std::string>& wrong) {
      return wrong ? std::optional(str("[", i, "].", key, *wrong)) : std::nullopt;
    };
    if (auto wrong = at("parameters", Pattern{}.check(each.parameters))) return wrong;
    if (auto wrong = at("lr", kOwnNumber.check(each.lr))) return wrong;
    if (auto wrong = at("weight_decay", kOwnNumber.check(each.weight_decay))) return wrong;
    if (auto wrong = at("betas", kOwnBetas.check(each.betas))) return wrong;
    if (auto wrong = at("eps", kOwnNumber.check(each.eps))) return wrong;
  }
  return {};
}

std::string ParameterGroups::write(const std::vector<ParameterGroup>& values) const {
  std::vector<std::string> groups;
  for (const ParameterGroup& each : values) {
    std::vector<std::string> parts = {str("\"parameters\": ", Pattern{}.write(each.parameters))};
    if (each.lr) parts.push_back(str("\"lr\": ", kOwnNumber.write(each.lr)));
    if (each.weight_decay) {
      parts.push_back(str("\"weight_decay\": ", kOwnNumber.write(each.weight_decay)));
    }
    if (each.betas) parts.push_back(str("\"betas\": ", kOwnBetas.write(each.betas)));
    if (each.eps) parts.push_back(str("\"eps\": ", kOwnNumber.write(each.eps)));
    groups.push_back("{" + join(parts, ", ") + "}");
  }
  return "[" + join(groups, ", ") + "]";
}

}  // namespace penstock::config
